"""Cloud TPU v1, v2alpha1 and v2."""
