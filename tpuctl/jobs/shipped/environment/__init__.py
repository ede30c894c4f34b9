"""What a job requires of its machine: a setup command, and packages in a virtual environment."""
