"""Imports Keras 2 from the first package that has it, in the same order as `transformers`."""

from __future__ import annotations

try:
    import tf_keras as keras  # for TensorFlow 2.16 and later, which include Keras 3
except ImportError:
    from tensorflow import keras  # included in TensorFlow up to 2.15, as on TPU nodes

__all__ = ["keras"]
