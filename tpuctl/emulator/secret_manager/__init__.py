"""Secret Manager v1."""

__all__: list[str] = []
