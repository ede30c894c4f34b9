"""Which batch fits, asked as seldom as can be, and what a compiler's words say."""

from __future__ import annotations

import pytest

from tpuctl.preflight.compile.batch_search import (
    MAX_BATCH,
    excess_text,
    first_batch,
    largest,
    memory_limit,
    power_of_two,
)
from tpuctl.preflight.compile.compile_report import Answer, Sizes

OLD = "RESOURCE_EXHAUSTED: 8.29G > 7.48G"
NEW = (
    "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. "
    "Used 18.24G of 15.48G hbm. Exceeded hbm capacity by 2.76G."
)
ONE_PART = (
    "RESOURCE_EXHAUSTED: Allocation (size=1610612736) would exceed memory (size=1073741824) :: "
    "#allocation148 [shape = 'u32[…"
)


@pytest.mark.parametrize("first", [1, 2, 16, 256, 4096])
@pytest.mark.parametrize("most", [0, 1, 2, 3, 48, 128, 5000])
async def test_finds_the_largest_power_that_fits_and_asks_about_the_next(
    most: int, first: int
) -> None:
    asked: list[int] = []

    async def fits(batch: int) -> bool:
        asked.append(batch)
        return batch <= most

    found = await largest(fits, first)
    powers = [1 << number for number in range(14)]
    assert found == max((one for one in powers if one <= most), default=0)
    assert max(1, 2 * found) in asked and (found in asked or not found)
    assert len(asked) == len(set(asked))  # a compilation takes half a minute


async def test_nobody_asks_for_a_batch_without_an_end() -> None:
    asked: list[int] = []

    async def fits(batch: int) -> bool:
        asked.append(batch)
        return True

    assert await largest(fits, 1 << 14) == MAX_BATCH
    assert max(asked) == MAX_BATCH


def test_guesses_are_powers_that_are_not_above() -> None:
    assert [power_of_two(number) for number in (0.3, 1, 2.9, 4, 1000)] == [1, 1, 2, 4, 512]


def test_a_guess_is_where_what_grows_with_the_batch_would_fill_the_room() -> None:
    # 8 examples take 80 beside 20 that are there whatever the batch: 98 more than fit into 1,000.
    sizes = Sizes(arguments=15, results=15, shared=12, temporary=80, code=2)
    assert first_batch(Answer(8, sizes, "", "", 1.0), 1000) == 64
    assert first_batch(Answer(8, sizes, "", "", 1.0), 19) == 1
    assert first_batch(Answer(8, sizes, "", "", 1.0), None) == 8


def test_a_refusal_says_how_much_smaller_a_batch_would_fit() -> None:
    words = "Used 40.00G of 10.00G hbm"
    assert first_batch(Answer(1000, None, "40.00G of 10.00G", words, 1.0), None) == 128  # below 250


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (OLD, "8.29G of 7.48G"),
        (NEW, "18.24G of 15.48G"),
        (ONE_PART, "1.50G of 1.00G"),
        ("INTERNAL: something else\nmore", "INTERNAL: something else"),
    ],
)
def test_a_refusal_is_told_in_the_compilers_numbers(words: str, said: str) -> None:
    assert excess_text(words) == said


def test_the_room_is_what_the_compiler_says_in_units_of_1024() -> None:
    assert memory_limit("Used 256.00G of 0.50G hbm") == 1 << 29
    assert memory_limit(ONE_PART) == 1 << 30
    assert memory_limit(OLD) == int(7.48 * 1024**3)
    assert memory_limit("INTERNAL: something else") is None


def test_the_peak_counts_new_values_that_take_the_old_ones_place_once() -> None:
    assert Sizes(1000, 900, 890, 5000, 7).peak == 1000 + 10 + 5000 + 7
