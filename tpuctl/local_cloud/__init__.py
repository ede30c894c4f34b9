"""Start and control a local cloud from another process, and configure shells to use it."""

__all__: list[str] = []
