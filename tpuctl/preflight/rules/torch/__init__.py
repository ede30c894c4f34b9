"""Rules on scripts for PyTorch/XLA."""
