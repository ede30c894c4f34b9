"""Which software knows which generation of TPUs."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["FIRST_LIBTPU", "TENSORFLOW_GENERATIONS"]

# The first libtpu on PyPI whose compiler accepts a topology of a generation, such as "v6e:2x2"
# (tests/corpus/test_libtpu_generations.py; 0.0.25 and 0.0.26 were never published).
FIRST_LIBTPU: Mapping[str, str] = {
    **dict.fromkeys(("v2", "v3", "v4", "v5e", "v5p"), "0.0.1"),
    "v6e": "0.0.2",
    "tpu7x": "0.0.27",
}
# docs.cloud.google.com/tpu/docs/tpu7x: "TensorFlow is not supported." (read 2026-11)
TENSORFLOW_GENERATIONS = ("v2", "v3", "v4", "v5e", "v5p", "v6e")
