"""Which batch fits: asked as seldom as can be, for an answer takes half a minute or more."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from tpuctl.preflight.compile.compile_report import Answer

__all__ = ["MAX_BATCH", "excess_text", "first_batch", "largest", "memory_limit", "power_of_two"]

MAX_BATCH = 1 << 16  # per core; larger batches are not tried
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
# The compiler's words for too much: as they are now, of old, and where one part alone is too large.
REFUSED = re.compile(
    r"Used ([\d.]+[KMG]) of ([\d.]+[KMG]) hbm|([\d.]+[KMG]) > ([\d.]+[KMG])|"
    r"\(size=(\d+)\) would exceed memory \(size=(\d+)\)"
)


async def largest(fits: Callable[[int], Awaitable[bool]], first: int) -> int:
    """Return the largest power of two that fits, 0 for none; begins at `first`, one itself.

    Both it and twice as many have been asked about in the end, but for more than MOST.
    """
    batch = first
    if await fits(batch):
        while 2 * batch <= MAX_BATCH and await fits(2 * batch):
            batch *= 2
        return batch
    while batch > 1:
        batch //= 2
        if await fits(batch):
            return batch
    return 0


def power_of_two(number: float) -> int:
    """Return the largest power of two that is not above a number, at least 1."""
    return 1 << max(0, int(number).bit_length() - 1)


def first_batch(answer: Answer, room: int | None) -> int:
    """Where to begin, by what was said of one batch, if what lies between grew with it."""
    batch = answer.batch or 1
    amounts = _amounts(answer.compiler_message)
    if answer.sizes is None and amounts is not None:
        used, there = map(_bytes, amounts)
        return power_of_two(batch * there / used)
    if room is None or answer.sizes is None or answer.sizes.temporary <= 0:
        return min(power_of_two(batch), MAX_BATCH)
    left = room - (answer.sizes.peak - answer.sizes.temporary)
    if left <= 0:
        return 1
    return min(power_of_two(left / (answer.sizes.temporary / batch)), MAX_BATCH)


def excess_text(words: str) -> str:
    """The compiler's numbers: `16.59G of 15.48G`; without any, its first line."""
    amounts = _amounts(words)
    if amounts is None:
        return words.strip().splitlines()[0][:120]
    used, room = (
        amount if amount[-1] in UNITS else f"{int(amount) / UNITS['G']:.2f}G" for amount in amounts
    )
    return f"{used} of {room}"


def memory_limit(words: str) -> int | None:
    """How many bytes a program can have, by the compiler's refusal of one that is too large."""
    amounts = _amounts(words)
    return None if amounts is None else _bytes(amounts[1])


def _amounts(words: str) -> tuple[str, str] | None:
    match = REFUSED.search(words)
    if match is None:
        return None
    used, room = (amount for amount in match.groups() if amount)
    return used, room


def _bytes(text: str) -> int:
    unit = UNITS.get(text[-1])
    return int(text) if unit is None else int(float(text[:-1]) * unit)
