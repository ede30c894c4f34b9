"""TPU types as Google Kubernetes Engine sells them: the labels of its nodes.

Source: docs.cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus (read 2026-11), which does
not list TPU v2.
"""

from __future__ import annotations

from collections.abc import Mapping

from tpuctl.catalog.tpu import AcceleratorType

__all__ = ["GKE_GENERATIONS", "gke_accelerator"]

# By generation: the value of the label cloud.google.com/gke-tpu-accelerator.
_ACCELERATORS: Mapping[str, str] = {
    "v3": "tpu-v3-slice",
    "v4": "tpu-v4-podslice",
    "v5e": "tpu-v5-lite-podslice",
    "v5p": "tpu-v5p-slice",
    "v6e": "tpu-v6e-slice",
    "tpu7x": "tpu7x",
}
GKE_GENERATIONS = tuple(_ACCELERATORS)


def gke_accelerator(accelerator: AcceleratorType) -> str | None:
    """The label of nodes with this type; None if GKE does not sell it."""
    if accelerator.generation == "v3" and accelerator.workers == 1:
        return "tpu-v3-device"
    return _ACCELERATORS.get(accelerator.generation)
