"""Values that the whole program speaks of."""

__all__: list[str] = []
