"""Lets one process at a time use a machine's chips, as libtpu does: it locks a file.

libtpu takes the lock when a framework first uses a device, and keeps it until the process ends.
Processes that share the chips of a machine among them, by its variables, do not lock them.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import importlib
import os
import struct
import tempfile
from typing import Any

from .script_calls import call_script

NAME = "libtpu_lockfile"  # in /tmp
IN_USE = (
    "ABORTED: The TPU is already in use by process with pid {}. "
    "Not attempting to load libtpu.so in this process."
)
# Each process then has some of the chips, or the user vouches for it.
SHARING = (
    "TPU_CHIPS_PER_PROCESS_BOUNDS",
    "TPU_CHIPS_PER_HOST_BOUNDS",
    "ALLOW_MULTIPLE_LIBTPU_LOAD",
)
FLOCK = "hhqqi"  # of fcntl(2) on 64-bit Linux: type, whence, start, length, process

_handles: list[int] = []  # of the lock, which this process keeps


def take(prefix: str = "") -> None:
    """Take the lock for the rest of this process. Raises RuntimeError, with libtpu's message after
    `prefix`, if another process has it."""
    if _handles or any(os.environ.get(name) for name in SHARING):
        return
    path = os.path.join(tempfile.gettempdir(), NAME)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        query = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        holder = struct.unpack(FLOCK, fcntl.fcntl(handle, fcntl.F_GETLK, query))[-1]
        os.close(handle)
        raise RuntimeError(prefix + IN_USE.format(holder)) from None
    _handles.append(handle)
    atexit.register(_remove, path, os.getpid())


def _remove(path: str, process: int) -> None:
    if os.getpid() == process:  # not in a child that was forked
        with contextlib.suppress(OSError):
            os.remove(path)


def hold_for_jax() -> None:
    """Take the lock when JAX first uses its devices."""
    bridge: Any = importlib.import_module("jax._src.xla_bridge")
    original = bridge.backends

    @functools.wraps(original)
    def backends() -> Any:
        take("Unable to initialize backend 'tpu': ")
        return call_script(original)

    bridge.backends = backends


def hold_for_tensorflow(tensorflow: Any) -> None:
    """Take the lock when TensorFlow initializes the TPU."""
    from .tensorflow_stubs import replace

    original = tensorflow.tpu.experimental.initialize_tpu_system

    def initialize_tpu_system(cluster_resolver: Any = None) -> Any:
        take()
        return call_script(original, cluster_resolver)

    replace(tensorflow, "tpu.experimental.initialize_tpu_system", initialize_tpu_system)
