"""Rules on scripts for PyTorch/XLA that several processes run together."""
