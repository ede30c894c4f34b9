"""The largest batch that fits, in few compilations, and the compiler's messages."""

from __future__ import annotations

import pytest

from tpuctl.preflight.compile.batch_search import (
    MAX_BATCH,
    excess_text,
    first_batch,
    largest_fitting,
    memory_limit,
    power_of_two,
)
from tpuctl.preflight.compile.compile_report import BatchResult, Sizes

OLD = "RESOURCE_EXHAUSTED: 8.29G > 7.48G"
NEW = (
    "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. "
    "Used 18.24G of 15.48G hbm. Exceeded hbm capacity by 2.76G."
)
NEWEST = (
    "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries "
    "(48.01G) exceeds available HBM (15.75G)."
)
ONE_PART = (
    "RESOURCE_EXHAUSTED: Allocation (size=1610612736) would exceed memory (size=1073741824) :: "
    "#allocation148 [shape = 'u32[…"
)


@pytest.mark.parametrize("first", [1, 2, 16, 256, 4096])
@pytest.mark.parametrize("most", [0, 1, 2, 3, 48, 128, 5000])
async def test_largest_fitting_power_and_next_are_tested(most: int, first: int) -> None:
    asked: list[int] = []

    async def fits(batch: int) -> bool:
        asked.append(batch)
        return batch <= most

    result = await largest_fitting(fits, first)
    powers = [1 << number for number in range(14)]
    assert result == max((power for power in powers if power <= most), default=0)
    assert max(1, 2 * result) in asked and (result in asked or not result)
    assert len(asked) == len(set(asked))  # a compilation takes half a minute


async def test_search_stops_at_max_batch() -> None:
    asked: list[int] = []

    async def fits(batch: int) -> bool:
        asked.append(batch)
        return True

    assert await largest_fitting(fits, 1 << 14) == MAX_BATCH
    assert max(asked) == MAX_BATCH


def test_search_begins_near_the_largest_batch() -> None:
    # 8 examples take 80, plus 20 for any batch size: 98 is the most that fits into 1,000.
    sizes = Sizes(arguments=15, results=15, shared=12, temporary=80, code=2)
    assert first_batch(BatchResult(8, sizes, "", "", 1.0), 1000) == 64
    assert first_batch(BatchResult(8, sizes, "", "", 1.0), 19) == 1
    assert first_batch(BatchResult(8, sizes, "", "", 1.0), None) == 8
    words = "Used 40.00G of 10.00G hbm"
    assert (
        first_batch(BatchResult(1000, None, "40.00G of 10.00G", words, 1.0), None) == 128
    )  # below 250
    assert [power_of_two(number) for number in (0.3, 1, 2.9, 4, 1000)] == [1, 1, 2, 4, 512]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (OLD, "8.29G of 7.48G"),
        (NEW, "18.24G of 15.48G"),
        (NEWEST, "48.01G of 15.75G"),
        (ONE_PART, "1.50G of 1.00G"),
        ("INTERNAL: something else\nmore", "INTERNAL: something else"),
    ],
)
def test_excess_uses_compiler_numbers(words: str, expected: str) -> None:
    assert excess_text(words) == expected


def test_memory_limit_uses_binary_units() -> None:
    assert memory_limit("Used 256.00G of 0.50G hbm") == 1 << 29
    assert memory_limit(NEWEST) == int(15.75 * 1024**3)
    assert memory_limit(ONE_PART) == 1 << 30
    assert memory_limit(OLD) == int(7.48 * 1024**3)
    assert memory_limit("INTERNAL: something else") is None
    assert Sizes(1000, 900, 890, 5000, 7).peak == 1000 + 10 + 5000 + 7
