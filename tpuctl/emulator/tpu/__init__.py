"""Cloud TPU v1, v2alpha1 and v2."""

__all__: list[str] = []
