"""Service accounts, roles, and grants."""
