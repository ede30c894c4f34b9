"""Hooks for TensorFlow and Keras, and the lowering of their steps."""
