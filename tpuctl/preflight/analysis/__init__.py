"""Static analysis of a script: its names, values and functions, without running it."""

__all__: list[str] = []
