"""The emulated APIs, one module each."""

__all__: list[str] = []
