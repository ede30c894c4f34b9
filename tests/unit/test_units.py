"""Sizes, money, durations and counts as they are written for people."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tpuctl.units import (
    approximate,
    billed_size,
    binary_size,
    clock_time,
    cost_range,
    counted,
    decimal_size,
    dollars,
    format_duration,
    time_range,
    transferred,
)


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (partial(counted, noun="file"), 0, "0 files"),
        (partial(counted, noun="file"), 1, "1 file"),
        (partial(counted, noun="file"), 2, "2 files"),
        (partial(counted, noun="file"), 1200, "1,200 files"),
        (decimal_size, 0, "0.0 kB"),
        (decimal_size, 4900, "4.9 kB"),
        (decimal_size, 99_900, "99.9 kB"),
        (decimal_size, 100_000, "0.1 MB"),
        (decimal_size, 27_100_000, "27.1 MB"),
        (decimal_size, 999_000_000, "999.0 MB"),
        (decimal_size, 3_210_000_000, "3.2 GB"),
        (decimal_size, 5e12, "5,000.0 GB"),
        # Transferred bytes use the unit of the total.
        (lambda total: transferred(500, total), 27_100_000, "0.0 of 27.1 MB"),
        (lambda total: transferred(500_000_000, total), 2_000_000_000, "0.5 of 2.0 GB"),
        (binary_size, 512, "0.5 KiB"),
        (binary_size, 2048, "2.0 KiB"),
        (binary_size, 3 * 2**20, "3.0 MiB"),
        (binary_size, 2**29, "0.5 GiB"),
        (binary_size, 7 * 2**30, "7.0 GiB"),
        (billed_size, 1, "1 byte"),
        (billed_size, 12, "12 bytes"),
        (billed_size, 512, "0.5 KB"),
        (billed_size, 3 * 2**20, "3.0 MB"),
        (billed_size, 5000 * 2**30, "5,000.0 GB"),
        (dollars, 8.8, "$8.80"),
        (dollars, 1234, "$1,234.00"),
        (dollars, 1234567.891, "$1,234,567.89"),
        (dollars, 1, "$1.00"),
        (dollars, 0.12, "$0.12"),
        (dollars, 0.1, "$0.10"),
        (dollars, 0.187, "$0.187"),
        (dollars, 0.052292, "$0.0523"),
        (dollars, 0.02, "$0.02"),
        (dollars, 0.004, "$0.004"),
        (dollars, 0.0025, "$0.0025"),
        (dollars, 0.9999, "$1.00"),
        (dollars, 0.00999999, "$0.01"),
        (dollars, 0.0001, "$0.0001"),
        (dollars, 0.00001, "<$0.0001"),
        (dollars, 0, "$0.00"),
        (dollars, -2.5, "-$2.50"),
        (format_duration, 0.4, "0 s"),
        (format_duration, 59, "59 s"),
        (format_duration, 60, "1 min"),
        (format_duration, 3660, "1 h 1 min"),
        (format_duration, 187200, "2 d 4 h"),
        (clock_time, 0.04, "0.0 s"),
        (clock_time, 9.9, "9.9 s"),
        (clock_time, 9.96, "10 s"),
        (clock_time, 59.4, "59 s"),
        (clock_time, 60, "1:00"),
        (clock_time, 185, "3:05"),
        (clock_time, 3600, "1:00:00"),
        (clock_time, 36_061, "10:01:01"),
        (approximate, 0.26, "0.3"),
        (approximate, 2.0, "2"),
        (approximate, 2.34, "2.3"),
        (approximate, 42.4, "42"),
        (approximate, 3141, "3,100"),
        (time_range, (0.004, 0.012), "4 to 12 ms"),
        (time_range, (2.0, 7.0), "2 to 7 s"),
        (time_range, (300.0, 1000.0), "5 to 17 minutes"),
        (time_range, (7200.0, 25200.0), "2 to 7 hours"),
        (time_range, (200_000.0, 666_667.0), "2.3 to 7.7 days"),
        (cost_range, (0.5, 1.5), "$0.50 to $1.50"),
        (cost_range, (17.6, 58.7), "$18 to $59"),
        (cost_range, (488.9, 1630), "$490 to $1,600"),
    ],
)
def test_units(write: Callable[[Any], str], value: Any, text: str) -> None:
    assert write(value) == text
    if write is dollars:
        assert dollars(value, is_complete=False) == f"at least {text}"
