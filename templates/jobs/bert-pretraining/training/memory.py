"""Explains out-of-memory errors, and suggests a batch size that fits. Needs no TensorFlow."""

from __future__ import annotations

import re

from errors import JobError

__all__ = ["explain", "fitting_share", "used_and_available"]

# A weight, its gradient and the optimizer's two moments, in float32 on every replica.
BYTES_PER_WEIGHT = 16
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
SIZE = r"(\d[\d.]*)([KMGT]?)"
# Messages of TPU compilers over the years (tensorflow/tpu issue 385, LargeWorldModel/LWM 60).
HBM = re.compile(rf"memory space hbm\.\s+Used {SIZE} of {SIZE} hbm")
EXCEEDED = re.compile(rf"RESOURCE_EXHAUSTED: {SIZE} > {SIZE}")
EXHAUSTED = re.compile(
    r"RESOURCE_EXHAUSTED|[Rr]an out of memory|\bOOM when allocating\b|Out of memory|Cannot allocate"
)


def used_and_available(text: str) -> tuple[int, int] | None:
    """Return the bytes of a replica's memory that were needed and available, if a text has them.

    >>> used_and_available("RESOURCE_EXHAUSTED: 8.00G > 4.00G")
    (8589934592, 4294967296)
    """
    if match := HBM.search(text) or EXCEEDED.search(text):
        used, used_unit, available, available_unit = match.groups()
        return int(float(used) * UNITS[used_unit]), int(float(available) * UNITS[available_unit])
    return None


def fitting_share(share: int, parameters: int, used: int, available: int) -> int:
    """Return the number of sequences that should fit when `share` sequences did not; 0 for none.

    Weights and the optimizer need the same memory for every batch; the rest is proportional to
    it. If the numbers leave no rest, the guess is half the share. Rounded down to a multiple of
    eight, as a TPU pads to it.
    """
    fixed = parameters * BYTES_PER_WEIGHT
    fits = share // 2 if used <= fixed else int(share * (available - fixed) / (used - fixed))
    fits = max(0, min(fits, share - 1))
    return fits - fits % 8 if fits > 8 else fits


def explain(
    text: str, *, batch: int, replicas: int, parameters: int, parts: int = 1
) -> JobError | None:
    """Return the JobError for a device's out-of-memory error, or None for any other error.

    `parts` is the number of parts that a replica splits its share of the batch into.
    """
    if not EXHAUSTED.search(text):
        return None
    share = batch // replicas
    numbers = used_and_available(text)
    tried = share // parts
    # Without numbers, try half of it.
    fits = fitting_share(tried, parameters, *numbers) if numbers else tried // 2
    advice = "not even one sequence fits: use a smaller --size or --sequence-length"
    if fits:
        certainty = "should fit" if numbers else "may fit"
        advice = f"--batch {fits * replicas * parts} {certainty}"
        if more := next((n for n in range(parts + 1, share + 1) if divides(n, share, fits)), None):
            advice += f", or --accumulation {more} with the same batch"
    return JobError(f"not enough memory for --batch {batch} ({error_line(text)}); {advice}")


def divides(parts: int, share: int, fits: int) -> bool:
    return share % parts == 0 and share // parts <= fits


def error_line(text: str) -> str:
    """Return the device's out-of-memory message without its surroundings."""
    line = next(line for line in text.splitlines() if EXHAUSTED.search(line)).strip()
    match = HBM.search(text)
    return f"Ran out of memory in {match.group()}" if match else line[:200]
