"""What a job installs, and whether its machines could install it."""
