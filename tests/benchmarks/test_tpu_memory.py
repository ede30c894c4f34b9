"""The table of a TPU's memory: what is searched, what is summed, what is lowered."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from tpu_memory import largest, peak, power_of_two, refusal


@pytest.mark.parametrize("guess", [1, 2, 16, 256, 4096])
@pytest.mark.parametrize("most", [0, 1, 2, 3, 48, 128, 5000])
def test_finds_the_largest_power_that_fits_and_asks_about_the_next(most: int, guess: int) -> None:
    asked: list[int] = []

    def fits(batch: int) -> bool:
        asked.append(batch)
        return batch <= most

    found = largest(fits, guess)
    powers = [1 << number for number in range(14)]
    assert found == max((one for one in powers if one <= most), default=0)
    assert max(1, 2 * found) in asked and (found in asked or not found)
    assert len(asked) == len(set(asked))  # a compilation takes half a minute


def test_guesses_are_powers_that_are_not_above() -> None:
    assert [power_of_two(number) for number in (0.3, 1, 2.9, 4, 1000)] == [1, 1, 2, 4, 512]


def test_peak_counts_new_values_that_take_the_old_ones_place_once() -> None:
    taken = {"arguments": 1000, "results": 900, "shared": 890, "temporary": 5000, "code": 7}
    assert peak(taken) == 1000 + 10 + 5000 + 7


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("RESOURCE_EXHAUSTED: 8.29G > 7.48G", "8.29G of 7.48G"),
        (
            "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory "
            "space hbm. Used 18.24G of 15.48G hbm. Exceeded hbm capacity by 2.76G.",
            "18.24G of 15.48G",
        ),
        ("INTERNAL: something else\nmore", "INTERNAL: something else"),
    ],
)
def test_a_refusal_is_told_in_the_compilers_numbers(text: str, said: str) -> None:
    assert refusal(text) == said


@pytest.mark.tensorflow
def test_what_is_lowered_computes_what_the_step_does(tmp_path: Path) -> None:
    from job_environment import job_python

    checked = subprocess.run(
        [job_python(), Path(__file__).parent / "checks" / "values.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert checked.stdout.splitlines()[-1:] == ["checked"], checked.stdout + checked.stderr
