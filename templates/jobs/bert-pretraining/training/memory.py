"""Not enough memory: what the device said, and the batch that would fit.

Works on texts and numbers alone: no TensorFlow needed to answer.
"""

from __future__ import annotations

import re

from errors import JobError

__all__ = ["explain", "fitting_share", "used_and_room"]

# A weight, its gradient and the optimizer's two averages, in float32 on every replica.
BYTES_PER_WEIGHT = 16
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
SIZE = r"(\d[\d.]*)([KMGT]?)"
# What compilers for TPUs say, over the years (tensorflow/tpu issue 385, LargeWorldModel/LWM 60).
HBM = re.compile(rf"memory space hbm\.\s+Used {SIZE} of {SIZE} hbm")
EXCEEDED = re.compile(rf"RESOURCE_EXHAUSTED: {SIZE} > {SIZE}")
EXHAUSTED = re.compile(
    r"RESOURCE_EXHAUSTED|[Rr]an out of memory|\bOOM when allocating\b|Out of memory|Cannot allocate"
)


def used_and_room(text: str) -> tuple[int, int] | None:
    """Return how many bytes of a replica's memory were wanted and there are, where a text says.

    >>> used_and_room("RESOURCE_EXHAUSTED: 8.00G > 4.00G")
    (8589934592, 4294967296)
    """
    if match := HBM.search(text) or EXCEEDED.search(text):
        used, used_unit, room, room_unit = match.groups()
        return int(float(used) * UNITS[used_unit]), int(float(room) * UNITS[room_unit])
    return None


def fitting_share(share: int, parameters: int, used: int, room: int) -> int:
    """Return how many sequences at once should fit where `share` of them did not; 0 for none.

    Weights and the optimizer take the same whatever the batch; the rest grows with it. Where the
    numbers leave no rest, half of it is as good a guess as any. Rounded down to a multiple of
    eight, as a TPU pads it.
    """
    fixed = parameters * BYTES_PER_WEIGHT
    fits = share // 2 if used <= fixed else int(share * (room - fixed) / (used - fixed))
    fits = max(0, min(fits, share - 1))
    return fits - fits % 8 if fits > 8 else fits


def explain(
    text: str, *, batch: int, replicas: int, parameters: int, parts: int = 1
) -> JobError | None:
    """Return what to tell of a device's error, or None when it is not about memory.

    `parts` are those of a replica's share of the batch that are computed one after another.
    """
    if not EXHAUSTED.search(text):
        return None
    share = batch // replicas
    numbers = used_and_room(text)
    tried = share // parts
    # Without numbers half of it is the next thing to try.
    fits = fitting_share(tried, parameters, *numbers) if numbers else tried // 2
    advice = "not one sequence fits: choose a smaller --size or --sequence-length"
    if fits:
        sure = "should fit" if numbers else "is worth a try"
        advice = f"--batch {fits * replicas * parts} {sure}"
        if more := next((n for n in range(parts + 1, share + 1) if divides(n, share, fits)), None):
            advice += f", or --accumulation {more} with the same batch"
    return JobError(f"not enough memory for --batch {batch} ({words(text)}); {advice}")


def divides(parts: int, share: int, fits: int) -> bool:
    return share % parts == 0 and share // parts <= fits


def words(text: str) -> str:
    """Return what ran out, as the device put it, without what surrounds it."""
    line = next(line for line in text.splitlines() if EXHAUSTED.search(line)).strip()
    found = HBM.search(text)
    return f"Ran out of memory in {found.group()}" if found else line[:200]
