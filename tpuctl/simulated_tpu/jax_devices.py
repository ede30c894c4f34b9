"""Gives a JAX script a TPU's devices as CPU devices."""

from __future__ import annotations

import functools
import os
import socket
from dataclasses import dataclass
from typing import Any

from .observer import Observer
from .script_calls import call_script

DEVICES_FLAG = "--xla_force_host_platform_device_count"
PLATFORMS = ("jax_platforms", "jax_platform_name")
# Functions that take a platform's name, which a script for a TPU may pass.
DEVICE_FUNCTIONS = (
    *("devices", "local_devices", "device_count", "local_device_count"),
    *("process_index", "process_count"),
)


@dataclass(frozen=True)
class Processes:
    """The number of this process among those of a slice, and the address at which they meet."""

    count: int = 1
    number: int = 0
    coordinator: str = ""


@dataclass(frozen=True)
class Devices:
    """The devices of this process, and the number of slices that all processes' devices form."""

    count: int
    slices: int = 1


def install(observer: Observer, jax: Any, devices: Devices) -> None:
    """Configure JAX after its import; it reads its settings when a script first uses a device."""
    observer.attempt("JAX's devices", _set_devices, jax, devices.count)
    observer.attempt("JAX's platform", _keep_platform, jax)
    observer.attempt("JAX's slices", _set_slices, jax, devices.slices)
    for name in DEVICE_FUNCTIONS:
        observer.attempt("JAX's devices", _accept_tpu, jax, name)


def _set_devices(jax: Any, count: int) -> None:
    """Set the number of CPU devices, whatever the script's environment says about CPUs."""
    jax.config.update("jax_platforms", "cpu")
    flags = os.environ.get("XLA_FLAGS", "").split()
    flags = [flag for flag in flags if not flag.startswith(DEVICES_FLAG)]
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except AttributeError:  # before JAX 0.5
        flags.append(f"{DEVICES_FLAG}={count}")
    os.environ["XLA_FLAGS"] = " ".join(flags)


def _keep_platform(jax: Any) -> None:
    """Let a script that insists on a TPU have the CPU's devices."""
    original = jax.config.update

    @functools.wraps(original)
    def update(name: str, value: Any) -> None:
        if name in PLATFORMS and "tpu" in str(value).split(","):
            value = "cpu"
        call_script(original, name, value)

    jax.config.update = update


def _set_slices(jax: Any, slices: int) -> None:
    """Number the slices of the devices, as of a TPU; CPU devices have no number."""

    def slice_index(device: Any) -> int:
        devices = jax.devices()
        return int(devices.index(device) * slices // len(devices))

    jax.Device.slice_index = property(slice_index)


def start_processes(observer: Observer, jax: Any, processes: Processes) -> None:
    """Let `jax.distributed.initialize` join these processes, whatever it is passed."""
    original = jax.distributed.initialize

    @functools.wraps(original)
    def initialize(*_: Any, **__: Any) -> None:
        observer.write("distributed", where=observer.line())
        address = processes.coordinator or unused_address()
        call_script(
            original,
            coordinator_address=address,
            num_processes=processes.count,
            process_id=processes.number,
            coordinator_bind_address=None if processes.number else address,
            cluster_detection_method="deactivate",
        )

    jax.distributed.initialize = initialize


def unused_address() -> str:
    """An address of this machine at which nothing listens yet."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{unused.getsockname()[1]}"


def _accept_tpu(jax: Any, name: str) -> None:
    original = getattr(jax, name)

    @functools.wraps(original)
    def call(*arguments: Any, **keywords: Any) -> Any:
        if keywords.get("backend") == "tpu":
            keywords["backend"] = "cpu"
        values = ("cpu" if value == "tpu" else value for value in arguments)
        return call_script(original, *values, **keywords)

    setattr(jax, name, call)
