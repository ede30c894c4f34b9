"""The compared implementations train the same model: those that need only the job's Python.

For the others the benchmark itself prints the number of weights and the first loss.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.benchmarks.pretraining import WAYS as ALL
from tests.benchmarks.pretraining import Program, take_turns, write_batches

WAYS = [way for way, (_, lock, _) in ALL.items() if lock is None]
MODEL = {
    "size": "tiny",
    "layers": 2,
    "hidden": 128,
    "heads": 2,
    "batch": 8,
    "dropout": 0.0,
    "vocabulary": 1000,
    "length": 32,
    "predictions": 4,
}


@pytest.mark.soak
@pytest.mark.tensorflow
@pytest.mark.timeout(900)
def test_every_way_trains_the_same_model(tmp_path: Path) -> None:
    batches = write_batches(tmp_path / "batches.npz", MODEL)
    first, programs = {}, {}
    try:
        for way in WAYS:
            programs[way] = Program(way, batches, MODEL, tmp_path / f"{len(programs)}.log")
            first[way] = programs[way].answer()
        timings = take_turns(programs, rounds=1, seconds=0.0)
    finally:
        for program in programs.values():
            program.stop()
    width, places, kinds = MODEL["hidden"], 512, 2
    normalized = 2 * width
    layer = 4 * (width * width + width) + 2 * 4 * width * width + 5 * width + 2 * normalized
    embeddings = (MODEL["vocabulary"] + places + kinds) * width + normalized
    head = width * width + width + normalized + MODEL["vocabulary"]
    whole = embeddings + MODEL["layers"] * layer + head
    assert len(first) == 3
    for way, answer in first.items():
        assert answer["parameters"] == whole, way
        assert answer["first_loss"] == pytest.approx(math.log(MODEL["vocabulary"]), abs=0.15), way
        (step,) = timings[way]
        assert step.seconds > 0 and step.cpu_seconds > 0, way
    assert programs["the bundled job, XLA"].compiled == 1
    assert programs["the bundled job"].compiled == 0
    assert programs["the bundled job"].traced == programs["the bundled job, XLA"].traced == "1"
