"""How quantities are written for people: sizes, money, durations, counts, estimates."""

from __future__ import annotations

import math


def counted(number: int, noun: str) -> str:
    """`1 file`, `1,200 files`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def decimal_size(count: float, like: float | None = None) -> str:
    """Bytes as `4.9 kB`, `27.1 MB` or `3.2 GB`; in the unit of `like`."""
    largest = count if like is None else like
    for power, least, unit in ((9, 1e9, "GB"), (6, 1e5, "MB")):
        if largest >= least:
            return f"{count / 10**power:,.1f} {unit}"
    return f"{count / 1e3:,.1f} kB"


def transferred(done: int, total: int) -> str:
    """`12.3 of 27.1 MB`."""
    return f"{decimal_size(done, like=total).split()[0]} of {decimal_size(total)}"


def binary_size(count: float) -> str:
    """Memory and disk space as `4.9 KiB`, `27.1 MiB` or `3.2 GiB`."""
    return _power_of_1024(count, ("GiB", "MiB", "KiB"))


def billed_size(count: int) -> str:
    """Stored bytes as Google bills them, with `GB` for 2**30 bytes: `27.1 MB`, `12 bytes`."""
    return _power_of_1024(count, ("GB", "MB", "KB")) if count >= 102.4 else counted(count, "byte")


def _power_of_1024(count: float, units: tuple[str, str, str]) -> str:
    giga, mega, kilo = units
    for power, unit in ((3, giga), (2, mega)):
        if count >= 1024**power / 10:
            return f"{count / 1024**power:,.1f} {unit}"
    return f"{count / 1024:,.1f} {kilo}"


def dollars(amount: float, *, is_complete: bool = True) -> str:
    """US dollars as `$1,234.00`, `$8.80`, `$0.0523`, `at least $0.004` if not complete.

    Two decimals; below a dollar up to three significant digits; tiny amounts as `<$0.0001`.
    """
    if not is_complete:
        return f"at least {dollars(amount)}"
    if amount < 0:
        return f"-{dollars(-amount)}"
    if not amount:
        return "$0.00"
    if amount < 0.0001:
        return "<$0.0001"
    decimals = max(2, 2 - math.floor(math.log10(amount)))
    whole, _, rest = f"{amount:,.{decimals}f}".partition(".")
    return f"${whole}.{rest[:2]}{rest[2:].rstrip('0')}"


def format_duration(seconds: float) -> str:
    """A duration in one or two units: `45 s`, `3 min`, `5 h 20 min`, `2 d 4 h`."""
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s"
    minutes = rounded // 60
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def clock_time(seconds: float) -> str:
    """A running time as `0.4 s`, `12 s`, `3:05`, `1:02:03`: short, with a stable width."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s"
    minutes, rest = divmod(rounded, 60)
    if minutes < 60:
        return f"{minutes}:{rest:02}"
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def approximate(value: float) -> str:
    """Two significant digits: `3,100`, `42`, `2.3`."""
    if value >= 100:
        digits = 10 ** (len(str(int(value))) - 2)
        return f"{round(value / digits) * digits:,}"
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}".removesuffix(".0")


def time_range(bounds: tuple[float, float]) -> str:
    """Seconds from and to, as `2 to 7 hours`."""
    for name, unit in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0), ("s", 1.0)):
        if bounds[1] >= 2 * unit:
            return f"{approximate(bounds[0] / unit)} to {approximate(bounds[1] / unit)} {name}"
    return f"{approximate(bounds[0] * 1000)} to {approximate(bounds[1] * 1000)} ms"


def cost_range(bounds: tuple[float, float]) -> str:
    """US dollars from and to, as `$18 to $60`, with two significant digits from $10 up."""
    low, high = bounds
    if high < 10:
        return f"{dollars(low)} to {dollars(high)}"
    return f"${approximate(low)} to ${approximate(high)}"
