"""Gives a PyTorch/XLA script the slice's devices as CPU devices, all in one process."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from typing import Any

from .context import Rehearsal
from .script_calls import call_script

__all__ = ["install"]

DEVICES_VARIABLE = "CPU_NUM_DEVICES"  # read when the script first uses a device


def install(rehearsal: Rehearsal) -> None:
    """Configure PyTorch/XLA after its import."""
    os.environ[DEVICES_VARIABLE] = str(rehearsal.settings.torch_devices)
    rehearsal.writer.attempt("PyTorch's processes", _watch_spawn, rehearsal)


def _watch_spawn(rehearsal: Rehearsal) -> None:
    """Let `torch_xla.launch` and `xmp.spawn` call the function in this process, for one device."""
    module: Any = importlib.import_module("torch_xla._internal.pjrt")
    original: Callable[..., Any] = module.spawn

    @functools.wraps(original)
    def spawn(
        function: Any, nprocs: Any = None, start_method: str = "spawn", args: Any = ()
    ) -> Any:
        if nprocs is None:
            rehearsal.writer.write("distributed", where=rehearsal.user_lines.current())
            os.environ[DEVICES_VARIABLE] = "1"
            nprocs = 1
        return call_script(original, function, nprocs, start_method, args)

    module.spawn = spawn
