"""Sizes, money, durations and counts as they are written for people."""

from __future__ import annotations

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
    ("number", "text"), [(0, "0 files"), (1, "1 file"), (2, "2 files"), (1200, "1,200 files")]
)
def test_counted(number: int, text: str) -> None:
    assert counted(number, "file") == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0.0 kB"), (4900, "4.9 kB"), (99_900, "99.9 kB"), (100_000, "0.1 MB"),
     (27_100_000, "27.1 MB"), (999_000_000, "999.0 MB"), (3_210_000_000, "3.2 GB"),
     (5e12, "5,000.0 GB")],
)  # fmt: skip
def test_decimal_size(count: float, text: str) -> None:
    assert decimal_size(count) == text


def test_transferred_bytes_use_the_unit_of_the_total() -> None:
    assert transferred(500, 27_100_000) == "0.0 of 27.1 MB"
    assert transferred(500_000_000, 2_000_000_000) == "0.5 of 2.0 GB"


@pytest.mark.parametrize(
    ("count", "text"),
    [(512, "0.5 KiB"), (2048, "2.0 KiB"), (3 * 2**20, "3.0 MiB"), (2**29, "0.5 GiB"),
     (7 * 2**30, "7.0 GiB")],
)  # fmt: skip
def test_binary_size(count: int, text: str) -> None:
    assert binary_size(count) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(1, "1 byte"), (12, "12 bytes"), (512, "0.5 KB"), (3 * 2**20, "3.0 MB"),
     (5000 * 2**30, "5,000.0 GB")],
)  # fmt: skip
def test_billed_size(count: int, text: str) -> None:
    assert billed_size(count) == text


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (8.8, "$8.80"),
        (1234, "$1,234.00"),
        (1234567.891, "$1,234,567.89"),
        (1, "$1.00"),
        (0.12, "$0.12"),
        (0.1, "$0.10"),
        (0.187, "$0.187"),
        (0.052292, "$0.0523"),
        (0.02, "$0.02"),
        (0.004, "$0.004"),
        (0.0025, "$0.0025"),
        (0.9999, "$1.00"),
        (0.00999999, "$0.01"),
        (0.0001, "$0.0001"),
        (0.00001, "<$0.0001"),
        (0, "$0.00"),
        (-2.5, "-$2.50"),
    ],
)
def test_dollars(amount: float, text: str) -> None:
    assert dollars(amount) == text
    assert dollars(amount, is_complete=False) == f"at least {text}"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59, "59 s"), (60, "1 min"), (3660, "1 h 1 min"), (187200, "2 d 4 h")],
)
def test_format_duration(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (9.9, "9.9 s"), (9.96, "10 s"), (59.4, "59 s"), (60, "1:00"),
     (185, "3:05"), (3600, "1:00:00"), (36_061, "10:01:01")],
)  # fmt: skip
def test_clock_time(seconds: float, text: str) -> None:
    assert clock_time(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.26, "0.3"), (2.0, "2"), (2.34, "2.3"), (42.4, "42"), (3141, "3,100")]
)
def test_approximate(value: float, text: str) -> None:
    assert approximate(value) == text


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ((0.004, 0.012), "4 to 12 ms"),
        ((2.0, 7.0), "2 to 7 s"),
        ((300.0, 1000.0), "5 to 17 minutes"),
        ((7200.0, 25200.0), "2 to 7 hours"),
        ((200_000.0, 666_667.0), "2.3 to 7.7 days"),
    ],
)
def test_times_have_two_digits(bounds: tuple[float, float], expected: str) -> None:
    assert time_range(bounds) == expected


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ((0.5, 1.5), "$0.50 to $1.50"),
        ((17.6, 58.7), "$18 to $59"),
        ((488.9, 1630), "$490 to $1,600"),
    ],
)
def test_costs_have_two_digits(bounds: tuple[float, float], expected: str) -> None:
    assert cost_range(bounds) == expected
