"""Gives a JAX script the slice's devices as CPU devices, all in one process."""

from __future__ import annotations

import functools
import os
import socket
from typing import Any

from .context import Rehearsal
from .script_calls import call_script

__all__ = ["install"]

DEVICES_FLAG = "--xla_force_host_platform_device_count"
# Functions that take a platform's name, which a script for a TPU may pass.
DEVICE_FUNCTIONS = (
    *("devices", "local_devices", "device_count", "local_device_count"),
    *("process_index", "process_count"),
)


def install(rehearsal: Rehearsal, jax: Any) -> None:
    """Configure JAX after its import; it reads its settings when a script first uses a device."""
    attempt = rehearsal.writer.attempt
    attempt("JAX's devices", _set_devices, rehearsal, jax)
    if rehearsal.settings.slices > 1:
        attempt("JAX's slices", _set_slices, rehearsal, jax)
    attempt("JAX's processes", _watch_initialize, rehearsal, jax)
    for name in DEVICE_FUNCTIONS:
        attempt("JAX's devices", _accept_tpu, jax, name)


def _set_devices(rehearsal: Rehearsal, jax: Any) -> None:
    jax.config.update("jax_platforms", "cpu")
    flags = os.environ.get("XLA_FLAGS", "").split()
    flags = [flag for flag in flags if not flag.startswith(DEVICES_FLAG)]
    flags.append(f"{DEVICES_FLAG}={rehearsal.settings.devices}")
    os.environ["XLA_FLAGS"] = " ".join(flags)


def _set_slices(rehearsal: Rehearsal, jax: Any) -> None:
    """Number the slices of the devices, as of a TPU with several; CPU devices have no number."""
    per_slice = rehearsal.settings.devices // rehearsal.settings.slices
    jax.Device.slice_index = property(lambda device: device.id // per_slice)


def _watch_initialize(rehearsal: Rehearsal, jax: Any) -> None:
    """Let `jax.distributed.initialize` start the only process, whatever it is passed."""
    original = jax.distributed.initialize

    @functools.wraps(original)
    def initialize(*_: Any, **__: Any) -> None:
        rehearsal.writer.write("distributed", where=rehearsal.user_lines.current())
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{unused.getsockname()[1]}"
        call_script(
            original,
            coordinator_address=address,
            num_processes=1,
            process_id=0,
            coordinator_bind_address=address,
            cluster_detection_method="deactivate",
        )

    jax.distributed.initialize = initialize


def _accept_tpu(jax: Any, name: str) -> None:
    original = getattr(jax, name)

    @functools.wraps(original)
    def call(*arguments: Any, **keywords: Any) -> Any:
        if keywords.get("backend") == "tpu":
            keywords["backend"] = "cpu"
        values = ("cpu" if value == "tpu" else value for value in arguments)
        return call_script(original, *values, **keywords)

    setattr(jax, name, call)
