"""The `local` commands."""
