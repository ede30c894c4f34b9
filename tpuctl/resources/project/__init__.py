"""The project of a stack, its enabled APIs, and the bucket with the stack's record."""
