"""Which TPU this machine drives, and how many replicas it has: no TensorFlow needed to answer."""

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
    # From v4 on the two TensorCores of a chip work as one; the name still counts cores.
    "v4": 2,
    "v5p": 2,
    # These names count chips.
    "v5litepod": 1,
    "v6e": 1,
}
# Notebooks on a TPU VM, where /dev need not show the chips: Colab's, and Kaggle's image for TPUs
# (github.com/Kaggle/docker-python, tpu/Dockerfile).
ON_A_TPU_VM = ("COLAB_TPU_1VM", "ISTPUVM")


def replicas_of(accelerator_type: str) -> int:
    """Return the number of replicas TPUStrategy has on a whole slice of this type.

    >>> replicas_of("v3-8"), replicas_of("v4-8"), replicas_of("v6e-8")
    (8, 4, 8)

    Raises ValueError for a name that is not understood.
    """
    match = re.fullmatch(r"(v\w+)-(\d+)", accelerator_type)
    if match is None or match.group(1) not in CORES_PER_REPLICA:
        raise ValueError(f"not a TPU type this job knows: {accelerator_type!r}")
    replicas = int(match.group(2)) // CORES_PER_REPLICA[match.group(1)]
    if replicas < 1:
        raise ValueError(f"not a TPU type this job knows: {accelerator_type!r}")
    return replicas


def has_chips(devices: Path = Path("/dev")) -> bool:
    """Say whether TPU chips are plugged into this machine."""
    return any(devices.glob("accel[0-9]*")) or any(devices.glob("vfio/[0-9]*"))


def tpu_address(environment: Mapping[str, str], chips: bool) -> str | None:
    """Return what the TPU resolver is to be given, or None where no TPU is to be had.

    It is `local` for chips of this machine, else a node's name, or grpc:// addresses with commas
    between. What tells of addresses goes before names, as in TensorFlow's resolver. A machine of
    the local cloud carries the names of a TPU VM but no chips.
    """
    endpoints = environment.get("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS")
    if endpoints:
        return endpoints
    name = environment.get("TPU_NAME", "")
    if name.startswith("grpc://"):
        return name
    if environment.get("COLAB_TPU_ADDR"):  # Colab, until it left TPU nodes in 2024
        return "grpc://" + environment["COLAB_TPU_ADDR"]
    is_on_tpu_vm = any(environment.get(variable) == "1" for variable in ON_A_TPU_VM)
    if chips or is_on_tpu_vm or "TPUCTL_REHEARSAL" in environment:  # which plays the chips
        return name or "local"
    if name in ("", "local") or environment.get("TPUCTL_CLOUD") == "local":
        return None
    return name


def slice_type(environment: Mapping[str, str] = os.environ, timeout: float = 2.0) -> str | None:
    """Ask the machine's metadata server for the slice's type; None where there is none to ask."""
    host = environment.get("GCE_METADATA_HOST")
    if not host:
        return None
    request = urllib.request.Request(
        f"http://{host}{ATTRIBUTE}", headers={"Metadata-Flavor": "Google"}
    )
    # The metadata server is on the machine's own link: a proxy could not reach it.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout) as answer:
            return answer.read().decode("utf-8").strip() or None
    except (urllib.error.URLError, OSError, UnicodeDecodeError):
        return None
