"""What the local cloud remembers and how it changes: the store, operations, paces, projects."""

__all__: list[str] = []
