"""Collects a profile in a script's process, with its framework's profiler.

Runs in a thread of the script, by whose Python it must be understood, when `profiler.py` asks for
it: see `stack_handler.py`. The attempt's folder `profile` has the request; the profile goes to its
folder named by the process, and a file next to that says how it ended.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time

TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "profile")


def collect() -> None:
    output = os.path.join(FOLDER, str(os.getpid()))
    result = {"framework": "", "error": ""}
    try:
        with open(os.path.join(FOLDER, "request.json"), encoding="utf-8") as request:
            seconds = json.load(request)["seconds"]
    except FileNotFoundError:  # the request has timed out: the main thread was busy for too long
        return
    try:
        result["framework"], start, stop = profiler()
        start(output)
        try:
            time.sleep(seconds)
        finally:
            stop()
    except Exception as error:
        result["error"] = f"{type(error).__name__}: {error}"
    with open(output + ".part", "w", encoding="utf-8") as target:
        json.dump(result, target)
    os.replace(output + ".part", output + ".json")


def profiler() -> tuple[str, Callable[[str], Any], Callable[[], Any]]:
    """The name of the framework that the script uses, and how to start and stop its profiler."""
    if "torch_xla" in sys.modules:
        module = importlib.import_module("torch_xla.debug.profiler")
        return "torch_xla", module.start_trace, module.stop_trace
    # Starting a trace earlier would initialize JAX before jax.distributed.initialize() can.
    bridge = sys.modules.get("jax._src.xla_bridge")
    if bridge is not None and bridge.backends_are_initialized():
        module = importlib.import_module("jax.profiler")
        return "jax", module.start_trace, module.stop_trace
    if "tensorflow" in sys.modules:
        module = importlib.import_module("tensorflow").profiler.experimental
        return "tensorflow", module.start, module.stop
    raise RuntimeError("the script has not used JAX, PyTorch/XLA, or TensorFlow yet")


if __name__ == "__main__":
    collect()
