"""Zones with flex-start: far fewer than have the hardware, and no API lists them.

Sources: docs.cloud.google.com/tpu/docs/request-using-flex-start (2025-09), and public zone tables
of requests accepted in 2026-08 and 2026-10. Combinations rejected there are left out: v6e in
asia-east1-c, us-central1-b, us-south1-a; v5litepod-1 in europe-west4-a and -b.
"""

from __future__ import annotations

from collections.abc import Mapping

from tpuctl.catalog.tpu import AcceleratorType

__all__ = ["FLEX_START_DAYS", "flex_start_zones"]

FLEX_START_DAYS = 7  # maximum run duration, from the same page
_ZONES: Mapping[str, tuple[str, ...]] = {
    "v5e": ("us-central1-a", "us-west4-a"),
    "v5p": ("us-east5-a",),
    "v6e": ("asia-northeast1-b", "europe-west4-a", "us-east5-a", "us-east5-b"),
}


def flex_start_zones(accelerator: AcceleratorType) -> tuple[str, ...]:
    """Zones that are known to accept flex-start requests for this type."""
    return tuple(
        zone for zone in _ZONES.get(accelerator.generation, ()) if zone in accelerator.zones
    )
