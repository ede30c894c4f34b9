"""What rules ask about scripts for TensorFlow: datasets, strategies, and names by version."""
