"""OS Login v1."""
