"""Rules on TensorFlow code of the host: input pipelines of TPU nodes, strategies, versions."""
