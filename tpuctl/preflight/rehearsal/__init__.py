"""A script run for a few steps on this machine: what was observed of it, and what that means."""

__all__: list[str] = []
