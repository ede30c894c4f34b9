"""State of the local cloud: the store, operations, paces, projects, settings."""

__all__: list[str] = []
