"""Compiles a script's training step with the TPU compiler, without a TPU."""
