"""The project, its APIs, and the bucket with the stack's record."""
