"""What a step of the bundled job takes of a TPU's memory, by the TPU's compiler, without a TPU.

    python tests/benchmarks/tpu_memory.py [--lengths 128 512] [--generations v2 v3 …]

Prints the table of docs/pretraining/memory.md. A compilation takes about half a minute of a quiet
machine, the whole table about a quarter of an hour.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))

from figures import Figure
from job_environment import JOB
from locked_environment import locked_python

__all__ = ["Row", "largest", "memory", "rows"]

PROGRAMS = Path(__file__).with_name("programs")
LOCKS = Path(__file__).resolve().parents[2] / "requirements" / "benchmarks"
SIZE = "base"
LENGTHS = (128, 512)
# GB of one core as TensorFlow sees it: a half of a v2 or v3 chip, else a chip. Only to begin the
# search near its end; what there really is the compiler says.
ROOM = {"v3": 16, "v2": 8, "v5e": 16, "v4": 32, "v6e": 32, "v5p": 95}
FIRST_GUESS = {128: 256, 512: 64}  # on the first of them
# The compiler's words for too much, by age.
REFUSED = re.compile(r"Used ([\d.]+[KMG]) of ([\d.]+[KMG]) hbm|([\d.]+[KMG]) > ([\d.]+[KMG])")


@dataclass(frozen=True)
class Row:
    """The largest power of two that fits as one core's batch, and what is said of the next."""

    generation: str
    length: int
    batch: int
    peak: int  # bytes
    refused: str  # "18.2G of 15.5G" for twice the batch


class Asked:
    """A program that answers each line with a line of JSON."""

    def __init__(self, lock: str, program: str, *arguments: str, path: tuple[Path, ...]) -> None:
        self.process = subprocess.Popen(
            [locked_python(LOCKS / lock), PROGRAMS / program, *arguments],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # libtpu complains of the TPU that is not there
            text=True,
        )

    def ask(self, question: str) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(question, file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args} ended with {self.process.wait()}")
        return dict(json.loads(line))

    def end(self) -> None:
        self.process.kill()
        with self.process:
            pass


class Judge:
    """The compiler, asked about batches of one length."""

    def __init__(self, stack: ExitStack, tpu: Asked, length: int) -> None:
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tpuctl-bench-")))
        self.tpu, self.length = tpu, length
        arguments = ("lower.py", str(self.folder), SIZE, str(length))
        self.step = Asked("tpu-lowering.lock", *arguments, path=(PROGRAMS, JOB))
        stack.callback(self.step.end)

    def row(self, generation: str, guess: int) -> tuple[Row, dict[str, Any]]:
        """Return the row and what is said of its batch, empty where not one sequence fits."""
        said: dict[int, dict[str, Any]] = {}

        def fits(batch: int) -> bool:
            said[batch] = self.ask(generation, batch)
            return "refused" not in said[batch]

        batch = largest(fits, guess)
        taken = said[batch] if batch else {}
        words = refusal(said[max(1, 2 * batch)]["refused"])
        return Row(generation, self.length, batch, peak(taken) if batch else 0, words), taken

    def ask(self, generation: str, batch: int) -> dict[str, Any]:
        program = self.folder / f"{batch}.hlo"
        if not program.exists():
            self.step.ask(str(batch))
        question = {"program": str(program), "generation": generation}
        said = self.tpu.ask(json.dumps(question))
        print(f"{batch} × {self.length}: {json.dumps(said)[:400]}", file=sys.stderr, flush=True)
        return said


def rows(lengths: tuple[int, ...], generations: tuple[str, ...]) -> Iterator[Row]:
    """Find each row of the table."""
    with ExitStack() as stack:
        tpu = Asked("tpu-compiler.lock", "compile_for_tpu.py", path=())
        stack.callback(tpu.end)
        for length in lengths:
            judge = Judge(stack, tpu, length)
            guess, a_sequence, fixed = FIRST_GUESS.get(length, 8), 0.0, 0
            for generation in generations:
                if a_sequence:
                    guess = power_of_two((1e9 * ROOM[generation] - fixed) / a_sequence)
                row, taken = judge.row(generation, guess)
                yield row
                if taken and not a_sequence:
                    fixed, a_sequence = taken["arguments"], taken["temporary"] / row.batch
            judge.step.end()


def largest(fits: Callable[[int], bool], guess: int) -> int:
    """Return the largest power of two that fits, 0 for none; begins at a guess, one itself.

    Both it and twice as many have been asked about in the end.
    """
    batch = guess
    if fits(batch):
        while fits(2 * batch):
            batch *= 2
        return batch
    while batch > 1:
        batch //= 2
        if fits(batch):
            return batch
    return 0


def power_of_two(number: float) -> int:
    """Return the largest power of two that is not above a number, at least 1."""
    return 1 << max(0, int(number).bit_length() - 1)


def peak(taken: dict[str, Any]) -> int:
    """Return the bytes of weights, optimizer, batch, what lies between, and the program itself.

    New values take the place of the old ones.
    """
    beside = taken["results"] - taken["shared"]
    return int(taken["arguments"] + taken["temporary"] + beside + taken["code"])


def refusal(text: str) -> str:
    match = REFUSED.search(text)
    if match is None:
        return text.splitlines()[0][:80]
    used, room = (one for one in match.groups() if one)
    return f"{used} of {room}"


def memory() -> Iterator[Figure]:
    """The table as lines of the report."""
    for row in rows(LENGTHS, tuple(ROOM)):
        yield Figure(
            f"{SIZE}, {row.generation}, sequences of {row.length}: most a core",
            f"{row.batch} sequences, {row.peak / 1e9:.1f} GB",
            f"{2 * row.batch} refused: {row.refused}",
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--generations", nargs="+", choices=ROOM, default=tuple(ROOM))
    chosen = parser.parse_args()
    print("| generation | length | batch per core | peak | twice as many |\n|---|---|---|---|---|")
    for row in rows(tuple(chosen.lengths), tuple(chosen.generations)):
        size = f"{row.peak / 1e9:.1f} GB"
        cells = (row.generation, row.length, row.batch, size, f"refused: {row.refused}")
        print("|", " | ".join(map(str, cells)), "|", flush=True)


if __name__ == "__main__":
    main()
