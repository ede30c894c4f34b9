"""Which quota limits a node counts against.

Except where `_STEMS` marks a guess, the names are from public reports, 2022 to 2026: v2
pods in skypilot 0.14.1 (cloud_vm_ray_backend.py), v4 and v5e in marin-community/marin#87, v6e in
#1612, v5p and the serving limits in run logs of 2025 and 2026. Each limit exists for the zone and
for its region: one error reported both as exhausted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tpuctl.catalog.tpu import AcceleratorType

__all__ = ["QuotaLimit", "quota_limit", "quota_limits", "usual_quota"]

Scope = Literal["zone", "region"]


@dataclass(frozen=True)
class QuotaLimit:
    """A limit of the Cloud TPU API, named as in the Cloud Quotas API and in error messages."""

    id: str
    scope: Scope
    unit: Literal["cores", "chips"]

    def amount(self, accelerator: AcceleratorType) -> int:
        """How much of the limit one node of this type uses."""
        return accelerator.cores if self.unit == "cores" else accelerator.chips


# By generation and class: the name for on-demand, the name for spot, and the unit.
_STEMS: Mapping[tuple[str, str], tuple[str, str, Literal["cores", "chips"]]] = {
    ("v2", "one"): ("TPUV2s", "TPUV2sPreemptible", "cores"),  # guesses, after the pods' names
    ("v2", "pod"): ("TPUV2sPod", "TPUV2sPreemptiblePod", "cores"),  # the first is a guess
    ("v3", "one"): ("TPUV3s", "TPUV3sPreemptible", "cores"),  # guesses, after v2
    ("v3", "pod"): ("TPUV3sPod", "TPUV3sPreemptiblePod", "cores"),  # guesses, after v2
    ("v4", "any"): ("TPUV4sPod", "TPUV4sPreemptiblePod", "cores"),  # the first is a guess
    ("v5e", "one"): ("TPUV5sLitepodServing", "TPUV5sPreemptibleLitepodServing", "chips"),
    ("v5e", "pod"): ("TPUV5sLitepod", "TPUV5sPreemptibleLitepod", "chips"),
    ("v5p", "any"): ("TPUV5P", "TPUV5PPreemptible", "cores"),
    ("v6e", "any"): ("TPUV6E", "TPUV6EPreemptible", "chips"),
}

# Documented default limits per zone of new projects, on demand and spot, by generation and class:
# docs.cloud.google.com/tpu/docs/quota, read 2026-04-09. Many projects have less.
USUAL_READ = "2026-04-09"
_USUAL: Mapping[tuple[str, str], tuple[int, int]] = {
    ("v2", "one"): (40, 120),
    ("v2", "pod"): (32, 32),
    ("v3", "one"): (40, 120),
    ("v3", "pod"): (32, 32),
    ("v4", "any"): (0, 0),
    ("v5e", "pod"): (512, 1536),
    ("v5p", "any"): (128, 768),
    ("v6e", "any"): (512, 1536),
}


def usual_quota(accelerator: AcceleratorType, spot: bool) -> int | None:
    """The documented default limit in a zone; None if not documented."""
    size = "one" if accelerator.workers == 1 else "pod"
    row = _USUAL.get((accelerator.generation, size)) or _USUAL.get((accelerator.generation, "any"))
    return row[1 if spot else 0] if row is not None else None


def quota_limits(accelerator: AcceleratorType, spot: bool) -> tuple[QuotaLimit, ...]:
    """The limits in the zone and in the region; empty for types that Cloud TPU does not offer.

    Preemptible and flex-start nodes count against the spot limits. `v5litepod-1`, `-4` and `-8`
    count against the serving limits, whatever they are used for.
    """
    size = "one" if accelerator.workers == 1 else "pod"
    row = _STEMS.get((accelerator.generation, size)) or _STEMS.get((accelerator.generation, "any"))
    if row is None:
        return ()
    on_demand, preemptible, unit = row
    stem = preemptible if spot else on_demand
    return (
        QuotaLimit(f"{stem}PerProjectPerZoneForTPUAPI", "zone", unit),
        QuotaLimit(f"{stem}PerProjectPerRegionForTPUAPI", "region", unit),
    )


def quota_limit(accelerator: AcceleratorType, spot: bool) -> QuotaLimit:
    """The limit in the zone. Raises ValueError for types that Cloud TPU does not offer."""
    for limit in quota_limits(accelerator, spot):
        if limit.scope == "zone":
            return limit
    raise ValueError(f"Cloud TPU has no quota for {accelerator.name}")
