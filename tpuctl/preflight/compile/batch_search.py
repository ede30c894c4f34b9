"""Searches the largest batch that fits, with few compilations: each takes 30 s or more."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from tpuctl.preflight.compile.compile_report import BatchResult

MAX_BATCH = 1 << 16  # per core; larger batches are not tried
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
# The compiler's messages for lack of memory: libtpu 0.0.42's, 0.0.17's, older, for a single buffer.
REFUSED = re.compile(
    r"\(([\d.]+[KMG])\) exceeds available HBM \(([\d.]+[KMG])\)|"
    r"Used ([\d.]+[KMG]) of ([\d.]+[KMG]) hbm|([\d.]+[KMG]) > ([\d.]+[KMG])|"
    r"\(size=(\d+)\) would exceed memory \(size=(\d+)\)"
)


async def largest_fitting(fits: Callable[[int], Awaitable[bool]], first: int) -> int:
    """Return the largest power of two that fits, or 0; start at `first`, itself a power of two.

    Both the result and its double have been tried, up to MAX_BATCH.
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
    """Return the largest power of two up to a number, at least 1."""
    return 1 << max(0, int(number).bit_length() - 1)


def first_batch(result: BatchResult, available: int | None) -> int:
    """Estimate the largest batch from one result, if temporary memory grows linearly."""
    batch = result.batch or 1
    amounts = _amounts(result.compiler_message)
    if result.sizes is None and amounts is not None:
        used, available = map(_bytes, amounts)
        return power_of_two(batch * available / used)
    if available is None or result.sizes is None or result.sizes.temporary <= 0:
        return min(power_of_two(batch), MAX_BATCH)
    remaining = available - (result.sizes.peak - result.sizes.temporary)
    if remaining <= 0:
        return 1
    return min(power_of_two(remaining / (result.sizes.temporary / batch)), MAX_BATCH)


def excess_text(message: str) -> str:
    """The numbers in the compiler's message, such as `16.59G of 15.48G`, or its first line."""
    amounts = _amounts(message)
    if amounts is None:
        return message.strip().splitlines()[0][:120]
    used, available = (
        amount if amount[-1] in UNITS else f"{int(amount) / UNITS['G']:.2f}G" for amount in amounts
    )
    return f"{used} of {available}"


def memory_limit(message: str) -> int | None:
    """The memory limit in bytes, from the compiler's message for a program that is too large."""
    amounts = _amounts(message)
    return None if amounts is None else _bytes(amounts[1])


def _amounts(message: str) -> tuple[str, str] | None:
    match = REFUSED.search(message)
    if match is None:
        return None
    used, available = (amount for amount in match.groups() if amount)
    return used, available


def _bytes(text: str) -> int:
    unit = UNITS.get(text[-1])
    return int(text) if unit is None else int(float(text[:-1]) * unit)
