"""Completion: what a shell is told at a Tab, from this machine alone."""

__all__: list[str] = []
