"""Detects the TPU of this machine and its number of replicas, without TensorFlow."""

from __future__ import annotations

import os
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

__all__ = ["has_chips", "replicas_of", "slice_type", "tpu_address"]

ATTRIBUTE = "/computeMetadata/v1/instance/attributes/accelerator-type"
CORES_PER_REPLICA = {
    "v2": 1,
    "v3": 1,
    # Since v4 the two TensorCores of a chip act as one device; the name still counts cores.
    "v4": 2,
    "v5p": 2,
    # These names count chips.
    "v5litepod": 1,
    "v6e": 1,
}
# Set in notebooks on a TPU VM, where the chips may be missing from /dev: Colab's, and Kaggle's
# image for TPUs (github.com/Kaggle/docker-python, tpu/Dockerfile).
TPU_VM_VARIABLES = ("COLAB_TPU_1VM", "ISTPUVM")


def replicas_of(accelerator_type: str) -> int:
    """Return the number of TPUStrategy replicas on a whole slice of this type.

    >>> replicas_of("v3-8"), replicas_of("v4-8"), replicas_of("v6e-8")
    (8, 4, 8)

    Raises ValueError for an unknown type.
    """
    match = re.fullmatch(r"(v\w+)-(\d+)", accelerator_type)
    if match is None or match.group(1) not in CORES_PER_REPLICA:
        raise ValueError(f"unknown TPU type: {accelerator_type!r}")
    replicas = int(match.group(2)) // CORES_PER_REPLICA[match.group(1)]
    if replicas < 1:
        raise ValueError(f"unknown TPU type: {accelerator_type!r}")
    return replicas


def has_chips(devices: Path = Path("/dev")) -> bool:
    """Whether this machine has TPU chips."""
    return any(devices.glob("accel[0-9]*")) or any(devices.glob("vfio/[0-9]*"))


def tpu_address(environment: Mapping[str, str], chips: bool) -> str | None:
    """Return the address for the TPU resolver, or None if there is no TPU.

    It is `local` for chips of this machine, a node's name, or comma-separated grpc:// addresses.
    Addresses take precedence over names, as in TensorFlow's resolver. A machine of the local cloud
    has the environment of a TPU VM but no chips.
    """
    endpoints = environment.get("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS")
    if endpoints:
        return endpoints
    name = environment.get("TPU_NAME", "")
    if name.startswith("grpc://"):
        return name
    if environment.get("COLAB_TPU_ADDR"):  # Colab's TPU nodes, until 2024
        return "grpc://" + environment["COLAB_TPU_ADDR"]
    is_on_tpu_vm = any(environment.get(variable) == "1" for variable in TPU_VM_VARIABLES)
    if chips or is_on_tpu_vm or "TPUCTL_REHEARSAL" in environment:  # simulates the chips
        return name or "local"
    if name in ("", "local") or environment.get("TPUCTL_CLOUD") == "local":
        return None
    return name


def slice_type(environment: Mapping[str, str] = os.environ, timeout: float = 2.0) -> str | None:
    """Return the slice's type from the metadata server, or None if it is unavailable."""
    host = environment.get("GCE_METADATA_HOST")
    if not host:
        return None
    request = urllib.request.Request(
        f"http://{host}{ATTRIBUTE}", headers={"Metadata-Flavor": "Google"}
    )
    # The metadata server is link-local: a proxy could not reach it.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout) as answer:
            return answer.read().decode("utf-8").strip() or None
    except (urllib.error.URLError, OSError, UnicodeDecodeError):
        return None
