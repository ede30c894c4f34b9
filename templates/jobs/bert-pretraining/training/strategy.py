"""The distribution strategy, chosen by the devices that are there."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from errors import JobError
from training.accelerators import has_chips, replicas_of, slice_type, tpu_address

__all__ = ["Choice", "choose"]


@dataclass(frozen=True)
class Choice:
    """A strategy ready for use, and what to say about it."""

    strategy: Any
    kind: str  # tpu, gpu or cpu
    replicas: int
    description: str


def choose(device: str = "auto", replicas: int | None = None) -> Choice:
    """Return the strategy for a device, or for the best one here when `device` is auto.

    `replicas` counts for a CPU only, which then plays that many devices. Call it before
    TensorFlow has run anything: devices cannot change afterwards.
    """
    address = tpu_address(os.environ, has_chips())
    gpus = tf.config.list_physical_devices("GPU")
    if device == "tpu" and address is None:
        raise JobError("--device tpu: no TPU here and TPU_NAME names none", 2)
    if device == "gpu" and not gpus:
        raise JobError("--device gpu: TensorFlow sees no GPU here", 2)
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
        raise JobError(f"{error}; say --replicas", 2) from error


def on_tpu(address: str) -> Choice:
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=address)
        if address != "local":
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        raise JobError(
            f"the TPU {address!r} cannot be used: {str(error).splitlines()[0]}"
        ) from error
    strategy = tf.distribute.TPUStrategy(resolver)
    count = strategy.num_replicas_in_sync
    return Choice(strategy, "tpu", count, f"TPU {address!r} with {count} replicas")


def on_gpus(count: int) -> Choice:
    names = [f"GPU:{number}" for number in range(count)]
    return Choice(tf.distribute.MirroredStrategy(names), "gpu", count, f"{count} GPU")


def on_cpu(replicas: int) -> Choice:
    cores = os.cpu_count() or 1
    if replicas == 1:
        return Choice(tf.distribute.OneDeviceStrategy("CPU:0"), "cpu", 1, f"CPU, {cores} cores")
    # The replicas keep all cores busy between them; threads inside an operation only get in
    # each other's way.
    tf.config.threading.set_inter_op_parallelism_threads(cores)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    device = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        device, [tf.config.LogicalDeviceConfiguration() for _ in range(replicas)]
    )
    strategy = tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(replicas)])
    return Choice(
        strategy, "cpu", replicas, f"CPU, {cores} cores playing {replicas} replicas of a slice"
    )
