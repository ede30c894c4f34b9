"""In which precision the network computes; its weights and its loss are float32 either way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from training.keras2 import keras

__all__ = ["computing_in", "precision_on"]

POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}
AMPERE = (8, 0)  # the first of NVIDIA's compute capabilities whose tensor cores know bfloat16


def precision_on(kind: str, wanted: str = "auto") -> str:
    """Return the precision for a kind of device (tpu, gpu or cpu): what is wanted, or the best.

    bfloat16 has the range of float32, so no loss needs scaling. TPUs multiply in it in any case;
    stored in it, what lies between the layers takes half the memory.
    """
    if wanted != "auto":
        return wanted
    return "bfloat16" if kind == "tpu" or (kind == "gpu" and gpus_know_it()) else "float32"


def gpus_know_it() -> bool:
    details = map(tf.config.experimental.get_device_details, tf.config.list_physical_devices("GPU"))
    return all(detail.get("compute_capability", (0, 0)) >= AMPERE for detail in details)


@contextmanager
def computing_in(precision: str) -> Iterator[None]:
    """Let the layers that are made within compute in a precision, float32 or bfloat16."""
    before = keras.mixed_precision.global_policy()
    keras.mixed_precision.set_global_policy(POLICIES[precision])
    try:
        yield
    finally:
        keras.mixed_precision.set_global_policy(before)
