"""Differences between TensorFlow versions that matter for this job."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["Names", "names_in"]


class Names(NamedTuple):
    """The names of a TensorFlow version for running replicas."""

    tpu_strategy: Any  # the class, constructed with the resolver alone
    run: str  # the method of every strategy: (fn, args=…) on each replica


def names_in(tensorflow: Any) -> Names:
    """Return the names of a TensorFlow module.

    TPUStrategy became stable in 2.3, and `run` replaced `experimental_run_v2` in 2.2. Everything
    else that `strategy.py` uses has the same name since 2.1.
    """
    distribute = tensorflow.distribute
    stable = hasattr(distribute, "TPUStrategy")
    return Names(
        distribute.TPUStrategy if stable else distribute.experimental.TPUStrategy,
        "run" if hasattr(distribute.Strategy, "run") else "experimental_run_v2",
    )
