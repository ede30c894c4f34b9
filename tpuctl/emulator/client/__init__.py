"""Starting and steering a local cloud from another process, and pointing shells at it."""

__all__: list[str] = []
