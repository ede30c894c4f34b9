"""A job, its attempts, and why they ended."""
