"""Tab completion for shells, from local data only."""
