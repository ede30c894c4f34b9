"""Makes the trace of capacity that tests and the benchmark of the hunt replay.

The zones' room comes and goes independently, after random times. No cloud was measured.

    python -m tests.support.capacity_traces     rewrites capacity_traces.csv
"""

from __future__ import annotations

import random
from pathlib import Path

from tpuctl.capacity_trace import HEADER

SHIPPED = Path(__file__).resolve().with_suffix(".csv")
SEED, HOURS, TYPE = 72, 72.0, "v5litepod-8"
# By zone: mean hours with room, and without.
ZONES = {
    "us-central1-a": (5.0, 9.0),
    "us-west4-a": (2.5, 4.0),
    "europe-west4-b": (8.0, 12.0),
}


def make_trace(seed: int, hours: float = HOURS) -> str:
    """A trace of one node's room in each zone; the same for the same seed."""
    numbers = random.Random(seed)
    changes = []
    for zone, means in ZONES.items():
        hour, room = 0.0, numbers.randrange(2)
        while hour < hours:
            changes.append((hour, zone, room))
            hour = round(hour + max(0.05, numbers.expovariate(1 / means[1 - room])), 2)
            room = 1 - room
    lines = [f"{hour:g},{zone},{TYPE},{room}" for hour, zone, room in sorted(changes)]
    return "\n".join([HEADER, *lines, ""])


if __name__ == "__main__":
    SHIPPED.write_text(make_trace(SEED), "utf-8")
