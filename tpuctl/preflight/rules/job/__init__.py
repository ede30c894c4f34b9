"""Rules on the script as a job: its files, packages, and secrets."""
