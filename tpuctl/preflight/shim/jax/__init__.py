"""Hooks for JAX, and the lowering of its steps."""
