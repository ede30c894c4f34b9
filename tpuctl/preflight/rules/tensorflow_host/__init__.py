"""Rules on TensorFlow code of the host: strategies, loops, versions."""
