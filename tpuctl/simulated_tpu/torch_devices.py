"""Gives a PyTorch/XLA script a TPU's devices as CPU devices, all in one process."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from typing import Any

from .observer import Observer
from .script_calls import call_script

DEVICES_VARIABLE = "CPU_NUM_DEVICES"  # read when the script first uses a device


def install(devices: int) -> None:
    """Configure PyTorch/XLA after its import, whatever device the script's environment names."""
    os.environ["PJRT_DEVICE"] = "CPU"
    os.environ[DEVICES_VARIABLE] = str(devices)


def spawn_here(observer: Observer) -> None:
    """Let `torch_xla.launch` and `xmp.spawn` call the function in this process, for one device."""
    module: Any = importlib.import_module("torch_xla._internal.pjrt")
    original: Callable[..., Any] = module.spawn

    @functools.wraps(original)
    def spawn(
        function: Any, nprocs: Any = None, start_method: str = "spawn", args: Any = ()
    ) -> Any:
        if nprocs is None:
            observer.write("distributed", where=observer.line())
            os.environ[DEVICES_VARIABLE] = "1"
            nprocs = 1
        return call_script(original, function, nprocs, start_method, args)

    module.spawn = spawn
