"""A script's training step, compiled by the TPU's own compiler without a TPU."""

__all__: list[str] = []
