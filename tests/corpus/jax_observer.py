"""Runs programs with JAX and prints what happened, for `test_rules_by_jax.py`.

Reads a JSON list of sources, and prints a JSON list of observations. JAX is imported once: new
functions are compiled anyway.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import json
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax

ITERATIONS = 30  # of the loops of a program
FILE = "train.py"
COMPILATION = "/jax/core/compile/backend_compile_duration"

counts: Counter[str] = Counter()


def count_compilation(event: str, duration: float, **_: object) -> None:
    counts["compilations"] += event == COMPILATION


def count_reads() -> None:
    """Count how often Python asks for the values of an array."""
    from jax._src.array import ArrayImpl

    def counted(read: Callable[..., Any]) -> Callable[..., Any]:
        def counting(array: Any, *arguments: Any) -> Any:
            counts["reads"] += 1
            return read(array, *arguments)

        return counting

    value = ArrayImpl._value
    ArrayImpl._value = property(counted(value.fget if isinstance(value, property) else value.func))
    ArrayImpl.item = counted(ArrayImpl.item)


def short_range(*bounds: int) -> range:
    return builtins.range(*bounds)[:ITERATIONS]


def observe(source: str) -> dict[str, Any]:
    counts.clear()
    names: dict[str, Any] = {"__name__": "__main__", "range": short_range}
    error, line = "", 0
    output = io.StringIO()
    with contextlib.redirect_stdout(output), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            exec(compile(source, FILE, "exec"), names)
            jax.effects_barrier()
        except Exception as exception:
            error = type(exception).__name__
            frames = traceback.extract_tb(exception.__traceback__)
            line = [frame.lineno for frame in frames if frame.filename == FILE][-1]
    state = names.get("first")  # by convention, the state before the loop
    return {
        "error": error,
        "line": line,
        "lines": len(output.getvalue().splitlines()),
        "warnings": [str(warning.message) for warning in caught],
        "is_donated": isinstance(state, jax.Array) and state.is_deleted(),
        **{name: counts[name] for name in ("compilations", "reads")},
    }


if __name__ == "__main__":
    jax.monitoring.register_event_duration_secs_listener(count_compilation)
    count_reads()
    print(json.dumps([observe(source) for source in json.load(sys.stdin)]))
