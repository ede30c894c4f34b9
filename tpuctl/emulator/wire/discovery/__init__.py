"""Google's public API descriptions, reduced to the emulated methods."""

__all__: list[str] = []
