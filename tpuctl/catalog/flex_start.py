"""Zones with flex-start and calendar mode: far fewer than have the hardware, and no API lists them.

Sources:

- flex-start of the Cloud TPU API: docs.cloud.google.com/tpu/docs/request-using-flex-start
  (2025-09), and public zone tables of requests accepted in 2026-06 (southamerica-west1-a), 2026-08
  and 2026-10. Combinations
  rejected there are left out: v6e in asia-east1-c, us-central1-b, us-south1-a; v5litepod-1 in
  europe-west4-a and -b.
- flex-start of Compute Engine: skypilot-org/skypilot, sky/clouds/gcp.py (2026-11), for v6e and
  TPU7x (for projects on an allowlist); v6e in europe-west4-a and v5p: xbill9/gemma4-dev (2026-08)
- calendar mode: docs.cloud.google.com/compute/docs/instances/future-reservations-calendar-mode
  (read 2026-11); TPU7x is in preview
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["CALENDAR", "CALENDAR_DAYS", "FLEX_START", "FLEX_START_DAYS"]

FLEX_START_DAYS = 7  # maximum run duration, from the same page
CALENDAR_DAYS = (1, 90)  # how long capacity can be reserved
# By the API that takes the request, and by generation.
FLEX_START: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "tpu": {
        "v5e": ("us-central1-a", "us-west4-a"),
        "v5p": ("us-east5-a",),
        "v6e": (
            *("asia-northeast1-b", "europe-west4-a", "southamerica-west1-a"),
            *("us-east5-a", "us-east5-b"),
        ),
    },
    "compute": {
        "v5p": ("us-east5-a",),
        "v6e": ("asia-northeast1-b", "europe-west4-a", "us-east5-a", "us-south1-ai1b"),
        "tpu7x": ("us-central1-c",),
    },
}
CALENDAR: Mapping[str, tuple[str, ...]] = {
    "v5e": ("europe-west4-b", "us-south1-a", "us-west4-b"),
    "v5p": ("us-east5-a",),
    "v6e": ("asia-northeast1-b", "europe-west4-a", "us-east5-a", "us-east5-b"),
    "tpu7x": ("us-central1-c",),
}
