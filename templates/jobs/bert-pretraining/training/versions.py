"""Where TensorFlow's versions differ, for all that this job needs of them."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["Names", "names_in"]


class Names(NamedTuple):
    """How one TensorFlow calls what drives its replicas."""

    tpu_strategy: Any  # the class, made with the resolver alone
    run: str  # the method of every strategy: (fn, args=…) on each replica


def names_in(tensorflow: Any) -> Names:
    """Return the names of a TensorFlow, given as its module.

    The stable TPUStrategy came with 2.3, and `run` in place of `experimental_run_v2` with 2.2.
    All else that `strategy.py` calls is called the same from 2.1 on.
    """
    distribute = tensorflow.distribute
    stable = hasattr(distribute, "TPUStrategy")
    return Names(
        distribute.TPUStrategy if stable else distribute.experimental.TPUStrategy,
        "run" if hasattr(distribute.Strategy, "run") else "experimental_run_v2",
    )
