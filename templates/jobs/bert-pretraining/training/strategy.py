"""Chooses the distribution strategy for the available devices.

Works with TensorFlow 2.1 and later; `versions.py` handles the differences.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from errors import JobError
from training.accelerators import has_chips, replicas_of, slice_type, tpu_address
from training.versions import names_in

__all__ = ["Choice", "choose"]

CONNECT_TIMEOUT = 10.0  # seconds, for a TPU node's port


@dataclass(frozen=True)
class Choice:
    """A strategy ready for use, with a description."""

    strategy: Any
    kind: str  # tpu, gpu or cpu: the device that computes
    replicas: int
    description: str
    is_remote: bool = False  # other machines read the records: those of a node or a slice

    def run(self, step: Any, args: tuple[Any, ...]) -> Any:
        """Run a function on every replica; call it within a tf.function."""
        return getattr(self.strategy, names_in(tf).run)(step, args=args)


def choose(device: str = "auto", replicas: int | None = None) -> Choice:
    """Return the strategy for a device, or for the best one available if `device` is auto.

    `replicas` applies to a CPU only, which then simulates that many devices. Call it before
    TensorFlow runs anything: devices cannot change afterwards.

    Raises JobError for a missing device, and for a TPU that cannot be used.
    """
    address = tpu_address(os.environ, has_chips())
    gpus = tf.config.list_physical_devices("GPU")
    if device == "tpu" and address is None:
        raise JobError("--device tpu: this machine has no TPU chips, and TPU_NAME is not set", 2)
    if device == "gpu" and not gpus:
        raise JobError("--device gpu: TensorFlow found no GPU", 2)
    if address is not None and device in ("auto", "tpu"):
        return on_tpu(address)
    if gpus and device in ("auto", "gpu"):
        return on_gpus(len(gpus))
    return on_cpu(replicas or slice_replicas())


def slice_replicas() -> int:
    accelerator_type = slice_type()
    if accelerator_type is None:
        return 1
    try:
        return replicas_of(accelerator_type)
    except ValueError as error:
        raise JobError(f"{error}; set --replicas", 2) from error


def on_tpu(address: str) -> Choice:
    """Connect to a TPU: `local` chips, a node by name, or the servers at grpc:// addresses."""
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
            tpu=address,
            zone=os.environ.get("TPU_ZONE"),
            project=os.environ.get("TPU_PROJECT"),
        )
        if address != "local":
            check_reachable(address, resolver.cluster_spec().as_dict()["worker"])
            tf.config.experimental_connect_to_cluster(resolver)
            if is_local_cloud_node():
                return on_local_cloud_node(address)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        strategy = names_in(tf).tpu_strategy(resolver)
    except tf.errors.NotFoundError as error:
        raise tpu_error(address, f"TensorFlow {tf.__version__} found no TPU devices") from error
    except (tf.errors.OpError, ImportError, OSError, RuntimeError, ValueError) as error:
        raise tpu_error(address, error) from error
    count = strategy.num_replicas_in_sync
    description = f"TPU {address!r} with {count} replicas"
    return Choice(strategy, "tpu", count, description, is_remote=address != "local")


def check_reachable(address: str, workers: list[str]) -> None:
    """Raise JobError unless all workers accept connections; TensorFlow would wait forever."""
    for worker in workers:
        host, _, port = worker.rpartition(":")
        try:
            socket.create_connection((host, int(port)), CONNECT_TIMEOUT).close()
        except OSError as error:
            raise tpu_error(address, f"cannot connect to {worker} ({error})") from error


def tpu_error(address: str, reason: object) -> JobError:
    first = (str(reason).strip() or type(reason).__name__).splitlines()[0].rstrip(".")
    return JobError(f"the TPU {address!r} cannot be used: {first}; --device cpu trains without it")


def is_local_cloud_node() -> bool:
    """Whether the connected node is the local cloud's, which has no TPU devices."""
    devices = tf.config.list_logical_devices()
    has_tpu = any(device.device_type.startswith("TPU") for device in devices)
    return os.environ.get("TPUCTL_CLOUD") == "local" and not has_tpu


def on_local_cloud_node(address: str) -> Choice:
    """Train on the CPU of the node's first worker: remote, as on a TPU node."""
    strategy = tf.distribute.OneDeviceStrategy("/job:worker/replica:0/task:0/device:CPU:0")
    description = f"the CPU of {address!r}, simulating a TPU node"
    return Choice(strategy, "cpu", 1, description, is_remote=True)


def on_gpus(count: int) -> Choice:
    names = [f"GPU:{number}" for number in range(count)]
    return Choice(tf.distribute.MirroredStrategy(names), "gpu", count, f"{count} GPU")


def on_cpu(replicas: int) -> Choice:
    cores = os.cpu_count() or 1
    if replicas == 1:
        return Choice(tf.distribute.OneDeviceStrategy("CPU:0"), "cpu", 1, f"CPU, {cores} cores")
    # The replicas keep all cores busy; threads inside an operation would only compete.
    tf.config.threading.set_inter_op_parallelism_threads(cores)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    device = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        device, [tf.config.LogicalDeviceConfiguration() for _ in range(replicas)]
    )
    strategy = tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(replicas)])
    return Choice(
        strategy, "cpu", replicas, f"CPU, {cores} cores simulating {replicas} replicas of a slice"
    )
