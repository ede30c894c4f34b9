"""Resource Manager v1, v2 and v3."""

__all__: list[str] = []
