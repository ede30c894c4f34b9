"""Service Usage v1 and v1beta1."""

__all__: list[str] = []
