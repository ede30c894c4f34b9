"""Rules on TensorFlow code that XLA compiles, and on shapes that recompile it."""
