"""Keras 2, from whichever package has it; `transformers` looks in the same order."""

from __future__ import annotations

try:
    import tf_keras as keras  # beside TensorFlow 2.16 and later, which have Keras 3
except ImportError:
    from tensorflow import keras  # TensorFlow's own up to 2.15, as on the newest TPU nodes

__all__ = ["keras"]
