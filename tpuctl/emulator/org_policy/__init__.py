"""Organization Policy v2."""

__all__: list[str] = []
