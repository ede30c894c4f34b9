"""What rules ask about scripts for JAX: compiled functions, loops that call them, processes."""
