"""Hooks for PyTorch, with and without XLA."""
