"""Rules on scripts for JAX."""
