"""Rules on scripts for JAX that several processes run together."""
