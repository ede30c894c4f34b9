"""The precision of the network's computation; weights and loss are always float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from training.keras2 import keras

__all__ = ["compute_precision", "precision_on"]

POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}
AMPERE = (8, 0)  # the first compute capability of NVIDIA with bfloat16 tensor cores


def precision_on(kind: str, requested: str = "auto") -> str:
    """Return the precision for a kind of device (tpu, gpu or cpu): the requested or the best one.

    bfloat16 has the range of float32, so no loss scaling is needed. TPUs always multiply in it;
    activations stored in it take half the memory.
    """
    if requested != "auto":
        return requested
    return "bfloat16" if kind == "tpu" or (kind == "gpu" and gpus_support_bfloat16()) else "float32"


def gpus_support_bfloat16() -> bool:
    details = map(tf.config.experimental.get_device_details, tf.config.list_physical_devices("GPU"))
    return all(detail.get("compute_capability", (0, 0)) >= AMPERE for detail in details)


@contextmanager
def compute_precision(precision: str) -> Iterator[None]:
    """Create layers within the context with a compute precision, float32 or bfloat16."""
    before = keras.mixed_precision.global_policy()
    keras.mixed_precision.set_global_policy(POLICIES[precision])
    try:
        yield
    finally:
        keras.mixed_precision.set_global_policy(before)
