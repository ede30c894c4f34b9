"""The `ci` commands."""
