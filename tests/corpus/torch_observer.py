"""Runs programs with PyTorch/XLA and prints what happened, for `test_rules_by_torch.py`.

Reads a JSON list of sources, and prints a JSON list of observations.
"""

from __future__ import annotations

import builtins
import contextlib
import gc
import io
import json
import sys
import traceback
from typing import Any

import torch_xla
from torch_xla.debug import metrics

ITERATIONS = 10  # of the loops of a program
FILE = "train.py"
COUNTED = {
    "compilations": "CompileTime",
    "executions": "ExecuteTime",
    "reads": "TransferFromDeviceTime",
}


def short_range(*bounds: int) -> range:
    return builtins.range(*bounds)[:ITERATIONS]


def observe(source: str) -> dict[str, Any]:
    gc.collect()
    torch_xla.sync()
    metrics.clear_all()
    names: dict[str, Any] = {"__name__": "__main__", "range": short_range}
    error, line = "", 0
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            exec(compile(source, FILE, "exec"), names)
        except SystemExit:
            pass
        except (RuntimeError, AssertionError, ValueError) as exception:
            error = type(exception).__name__
            frames = traceback.extract_tb(exception.__traceback__)
            line = [frame.lineno for frame in frames if frame.filename == FILE][-1]
    counts = {name: (metrics.metric_data(key) or [0])[0] for name, key in COUNTED.items()}
    return {"error": error, "line": line, **counts}


if __name__ == "__main__":
    print(json.dumps([observe(source) for source in json.load(sys.stdin)]))
