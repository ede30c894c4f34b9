"""Rules about the host code around the steps of JAX."""
