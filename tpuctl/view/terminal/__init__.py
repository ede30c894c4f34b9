"""Terminals and stdout: tables, text width, control characters, and what is redrawn in place."""
