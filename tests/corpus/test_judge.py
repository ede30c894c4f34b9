"""verdicts.toml matches the verdicts of the current compiler."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.corpus.judge import (
    PROGRAMS,
    Verdict,
    differences,
    digest,
    judge,
    load_verdicts,
    programs,
)

SAMPLE, LOWERED = 20, 4


def quick() -> list[Path]:
    """Programs without a library that takes longer to import than everything else."""
    return [path for path in programs() if "transformers" not in path.read_text("utf-8")]


def test_verdicts_are_of_these_programs() -> None:
    """And of these versions of TensorFlow and others: with the same ones, verdicts are the same."""
    assert {file: verdict.digest for file, verdict in load_verdicts().items()} == {
        path.name: digest(path) for path in programs()
    }, "judge them again: python tests/corpus/judge.py --write PROGRAM…"


def sampled() -> list[Path]:
    """A few programs, at least one per verdict; others with each seed of the run."""
    by_verdict: dict[str, list[Path]] = {}
    for path in quick():
        by_verdict.setdefault(load_verdicts()[path.name].verdict, []).append(path)
    first = [random.choice(paths) for _, paths in sorted(by_verdict.items())]
    rest = [path for path in quick() if path not in first]
    return [*first, *random.sample(rest, SAMPLE - len(first))]


@pytest.mark.soak
@pytest.mark.tensorflow
@pytest.mark.timeout(900)
def test_sampled_verdicts_match_recorded() -> None:
    """And those of all programs with a library that takes long to import."""
    slow = set(programs()) - set(quick())
    assert slow
    assert not differences(judge([*sampled(), *sorted(slow)], on_tpu=False))


@pytest.mark.soak
@pytest.mark.tensorflow
@pytest.mark.timeout(1800)
def test_sampled_tpu_verdicts_match_recorded() -> None:
    """A TPU's operations change no verdict today: XLA on a CPU gives the same."""
    lowered = [path for path in quick() if load_verdicts()[path.name].tpu == "lowered"]
    found = list(judge(random.sample(lowered, LOWERED)))
    assert not differences(found)
    assert [verdict.tpu for verdict in found] == ["lowered"] * LOWERED


def test_unrecorded_verdict_is_a_difference() -> None:
    name = programs()[0].name
    other = Verdict(name, "error" if load_verdicts()[name].verdict != "error" else "good")
    assert differences([other])
    assert not differences([load_verdicts()[name]])
    assert PROGRAMS.joinpath(name).exists()
