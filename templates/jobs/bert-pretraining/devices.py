"""The devices to train on: a TPU, GPUs or the CPU. TensorFlow is imported where it is needed."""

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from files import JobError
from machine import slice_type

# Since v4 the two TensorCores of a chip act as one device, while the type still counts cores. The
# types v5litepod and v6e count chips.
CORES_PER_REPLICA = {"v2": 1, "v3": 1, "v4": 2, "v5p": 2, "v5litepod": 1, "v6e": 1}
# Set in notebooks on a TPU VM, where the chips may be missing from /dev: Colab's, and Kaggle's
# image for TPUs (github.com/Kaggle/docker-python, tpu/Dockerfile).
NOTEBOOK_VARIABLES = ("COLAB_TPU_1VM", "ISTPUVM")
MAX_SIMULATED = 2  # replicas on a CPU by default: the time for compiling is proportional to them
CONNECT_TIMEOUT = 10.0  # seconds, for a TPU node's port
AMPERE = (8, 0)  # the first compute capability of NVIDIA with bfloat16 tensor cores

EXHAUSTED = re.compile(
    r"RESOURCE_EXHAUSTED|[Rr]an out of memory|\bOOM when allocating\b|Out of memory|Cannot allocate"
)


@dataclass(frozen=True)
class Choice:
    """A strategy ready for use, with a description."""

    strategy: Any
    kind: str  # tpu, gpu or cpu: the device that computes
    replicas: int
    description: str
    precision: str = "float32"  # the best for the device
    is_remote: bool = False  # other machines read the records: those of a node or a slice


def choose(device: str = "auto", replicas: int | None = None) -> Choice:
    """Return the strategy for a device, or for the best one available if `device` is auto.

    `replicas` applies to a CPU only, which then simulates that many devices, by default those of
    the slice, but at most MAX_SIMULATED. Call it before TensorFlow runs anything. Raises JobError
    for a device that is missing or cannot be used.
    """
    import tensorflow as tf

    address = tpu_address(os.environ, has_chips())
    gpus = tf.config.list_physical_devices("GPU")
    if device == "tpu" and address is None:
        raise JobError("--device tpu: this machine has no TPU chips, and TPU_NAME is not set", 2)
    if device == "gpu" and not gpus:
        raise JobError("--device gpu: TensorFlow found no GPU", 2)
    if address is not None and device in ("auto", "tpu"):
        return on_tpu(address)
    if gpus and device in ("auto", "gpu"):
        details = map(tf.config.experimental.get_device_details, gpus)
        is_fast = all(about.get("compute_capability", (0, 0)) >= AMPERE for about in details)
        strategy = tf.distribute.MirroredStrategy([f"GPU:{n}" for n in range(len(gpus))])
        precision = "bfloat16" if is_fast else "float32"
        return Choice(strategy, "gpu", len(gpus), f"{len(gpus)} GPU", precision)
    try:
        return on_cpu(replicas or min(MAX_SIMULATED, replicas_of(slice_type() or "v2-1")))
    except ValueError as error:
        raise JobError(f"{error}; set --replicas", 2) from error


def on_tpu(address: str) -> Choice:
    """Connect to a TPU: `local` chips, a node by name, or the servers at grpc:// addresses."""
    import tensorflow as tf

    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
            address, zone=os.environ.get("TPU_ZONE"), project=os.environ.get("TPU_PROJECT")
        )
        if address != "local":
            for worker in resolver.cluster_spec().as_dict()["worker"]:
                check_reachable(address, worker)
            tf.config.experimental_connect_to_cluster(resolver)
            has_tpu = any(d.device_type.startswith("TPU") for d in tf.config.list_logical_devices())
            if os.environ.get("TPUCTL_CLOUD") == "local" and not has_tpu:
                # Remote, as on a TPU node: the CPU of the node's first worker.
                cpu = tf.distribute.OneDeviceStrategy("/job:worker/replica:0/task:0/device:CPU:0")
                text = f"the CPU of {address!r}, simulating a TPU node"
                return Choice(cpu, "cpu", 1, text, is_remote=True)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        strategy = tf.distribute.TPUStrategy(resolver)
    except tf.errors.NotFoundError as error:
        raise tpu_error(address, f"TensorFlow {tf.__version__} found no TPU devices") from error
    except (tf.errors.OpError, ImportError, OSError, RuntimeError, ValueError) as error:
        raise tpu_error(address, error) from error
    count = strategy.num_replicas_in_sync
    text = f"TPU {address!r} with {count} replicas"
    # bfloat16 has the range of float32, so no loss scaling is needed.
    return Choice(strategy, "tpu", count, text, "bfloat16", is_remote=address != "local")


def check_reachable(address: str, worker: str) -> None:
    """Raise JobError unless a worker accepts connections; TensorFlow would wait forever."""
    host, _, port = worker.rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_TIMEOUT).close()
    except OSError as error:
        raise tpu_error(address, f"cannot connect to {worker} ({error})") from error


def tpu_error(address: str, reason: object) -> JobError:
    first = (str(reason).strip() or type(reason).__name__).splitlines()[0].rstrip(".")
    return JobError(f"the TPU {address!r} cannot be used: {first}; --device cpu trains without it")


def on_cpu(replicas: int) -> Choice:
    import tensorflow as tf

    cores = os.cpu_count() or 1
    if replicas == 1:
        return Choice(tf.distribute.OneDeviceStrategy("CPU:0"), "cpu", 1, f"CPU, {cores} cores")
    # The replicas keep all cores busy; threads inside an operation would only compete.
    tf.config.threading.set_inter_op_parallelism_threads(cores)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration() for _ in range(replicas)],
    )
    strategy = tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(replicas)])
    text = f"CPU, {cores} cores simulating {replicas} replicas of a slice"
    return Choice(strategy, "cpu", replicas, text)


def replicas_of(accelerator_type: str) -> int:
    """Return the number of TPUStrategy replicas on a whole slice: 4 for v4-8, 8 for v6e-8.

    Raises ValueError for an unknown type.
    """
    match = re.fullmatch(r"(v\w+)-(\d+)", accelerator_type)
    cores = CORES_PER_REPLICA.get(match[1], 0) if match else 0
    if match is None or not cores or int(match[2]) < cores:
        raise ValueError(f"unknown TPU type: {accelerator_type!r}")
    return int(match[2]) // cores


def has_chips(devices: Path = Path("/dev")) -> bool:
    """Whether this machine has TPU chips."""
    return any(devices.glob("accel[0-9]*")) or any(devices.glob("vfio/[0-9]*"))


def tpu_address(environment: Mapping[str, str], chips: bool) -> str | None:
    """Return the address for the TPU resolver, or None if there is no TPU.

    It is `local` for chips of this machine, a node's name, or comma-separated grpc:// addresses.
    Addresses take precedence over names, as in TensorFlow's resolver. A machine of the local cloud
    has the environment of a TPU VM but no chips.
    """
    if endpoints := environment.get("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS"):
        return endpoints
    name = environment.get("TPU_NAME", "")
    if name.startswith("grpc://"):
        return name
    if environment.get("COLAB_TPU_ADDR"):  # Colab's TPU nodes, until 2024
        return "grpc://" + environment["COLAB_TPU_ADDR"]
    is_notebook = any(environment.get(variable) == "1" for variable in NOTEBOOK_VARIABLES)
    if chips or is_notebook or "TPUCTL_REHEARSAL" in environment:  # simulates the chips
        return name or "local"
    return None if name in ("", "local") or environment.get("TPUCTL_CLOUD") == "local" else name


def explain_memory(text: str, batch: int, share: int, parts: int) -> JobError | None:
    """Return the JobError for a device's out-of-memory error, or None for any other error.

    `share` is a replica's part of the batch, which it splits into `parts`.
    """
    line = next((line.strip() for line in text.splitlines() if EXHAUSTED.search(line)), None)
    if line is None:
        return None
    advice = "not even one sequence fits: use a smaller --size or --sequence-length"
    if more := [number for number in range(2 * parts, share + 1) if share % number == 0]:
        advice = f"--batch {batch // 2} or --accumulation {more[0]} may fit"
        advice += "; tpuctl rehearse --compile tells what fits on a TPU"
    return JobError(f"not enough memory for --batch {batch} ({line[:200]}); {advice}")
