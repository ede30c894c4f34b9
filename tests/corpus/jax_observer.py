"""Runs programs with JAX and prints what happened, for `test_rules_by_jax.py`.

Reads a JSON list of sources, and prints a JSON list of observations. JAX is imported once: new
functions are compiled anyway. With the arguments ADDRESS, COUNT and INDEX it is one of several
processes, which run each program together.
"""

from __future__ import annotations

import builtins
import contextlib
import hashlib
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
CAPTURED = 1_000_000  # bytes of constants of which JAX warns
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
        "different_lines": len({*output.getvalue().splitlines()}),
        "warnings": [str(warning.message) for warning in caught],
        "is_donated": isinstance(state, jax.Array) and state.is_deleted(),
        "is_alone": _is_alone(names.get("weights")),
        "part": _part(names.get("batch")),
        **{name: counts[name] for name in ("compilations", "reads")},
    }


def _is_alone(weights: object) -> bool:
    """Whether the program trained on the devices of this process alone."""
    return isinstance(weights, jax.Array) and weights.is_fully_addressable


def _part(batch: object) -> str:
    """A digest of what this process holds of an array of all processes."""
    if not isinstance(batch, jax.Array) or batch.is_fully_addressable:
        return ""
    parts = b"".join(shard.data.tobytes() for shard in batch.addressable_shards)
    return hashlib.sha256(parts).hexdigest()


def join_processes(address: str, count: str, index: str) -> None:
    """Start JAX on several processes; programs that do so find it done."""
    jax.distributed.initialize(address, int(count), int(index), coordinator_bind_address=address)
    jax.distributed.initialize = lambda: None


if __name__ == "__main__":
    if sys.argv[1:]:
        join_processes(*sys.argv[1:])
    jax.monitoring.register_event_duration_secs_listener(count_compilation)
    count_reads()
    jax.config.update("jax_captured_constants_warn_bytes", CAPTURED)
    print(json.dumps([observe(source) for source in json.load(sys.stdin)]))
