"""Tab completion for shells, from local data only."""

__all__: list[str] = []
