"""What rules ask about scripts for PyTorch/XLA: their training loops."""
