"""The bundled job's training compared with other implementations, on this machine's CPU."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from tests.benchmarks.figures import Figure, sized
from tests.support.job_environment import JOB, job_python
from tests.support.locked_environment import locked_python

__all__ = ["WAYS", "Program", "Step", "pretraining", "take_turns", "write_batches"]

PROGRAMS = Path(__file__).with_name("programs")
LOCKS = Path(__file__).resolve().parents[2] / "requirements" / "benchmarks"
SIZES = sized(
    {
        "mini": {"layers": 4, "hidden": 256, "heads": 4},
        "small": {"layers": 4, "hidden": 512, "heads": 8},
    },
    {"tiny": {"layers": 2, "hidden": 128, "heads": 2}},
)
SHAPE = {"vocabulary": 32_000, "length": 128, "predictions": 20, "batch": 32, "dropout": 0.1}
ROUNDS = sized(5, 1)
SECONDS_A_ROUND = sized(4.0, 0.0)

# name in the report: program, lock of its environment (None for the job's own), its options
WAYS: dict[str, tuple[str, str | None, list[str]]] = {
    "the bundled job": ("bundled.py", None, ["--xla", "off"]),
    "the bundled job, XLA": ("bundled.py", None, ["--xla", "on"]),
    "Hugging Face's fit": ("huggingface.py", None, []),
    "KerasHub": ("kerashub.py", "keras-hub.lock", []),
    "tf-models-official": ("tfmodels.py", "tf-models.lock", []),
}
GOALS = {"Hugging Face's fit": 1.3, "KerasHub": 1.0, "tf-models-official": 1.0}
# XLA's message each time it compiles a function for a device.
COMPILED = re.compile(r"Compiled (\S+) (\d+) times")


def write_batches(path: Path, model: Mapping[str, Any]) -> Path:
    """Write the batches that all of them train on; return the file."""
    subprocess.run([job_python(), PROGRAMS / "batches.py", path, json.dumps(model)], check=True)
    return path


class Step(NamedTuple):
    """What one step took, in seconds."""

    seconds: float  # on the clock
    cpu_seconds: float  # of all processors; hardly affected by other load


class Program:
    """One implementation, in a separate process that waits between its rounds."""

    def __init__(self, way: str, batches: Path, model: Mapping[str, Any], log: Path) -> None:
        """Start it; raises RuntimeError when its environment cannot be created."""
        program, lock, choices = WAYS[way]
        python = locked_python(LOCKS / lock) if lock else job_python()
        self.log = log
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("TF_")
        }
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [python, PROGRAMS / program, batches, json.dumps(model), *choices],
                env={
                    **environment,
                    "PYTHONPATH": os.pathsep.join(map(str, (PROGRAMS, JOB))),
                    "PYTHONDONTWRITEBYTECODE": "1",
                    "TF_CPP_VMODULE": "device_compilation_profiler=1",
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def answer(self) -> dict[str, Any]:
        """Wait for its next answer; raises RuntimeError with its last lines when it exited."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            tail = self.log.read_text("utf-8", "replace").splitlines()[-3:]
            raise RuntimeError(f"ended with {self.process.wait()}: {' '.join(tail)[-300:]}")
        return dict(json.loads(line))

    def take_steps(self, steps: int) -> Step:
        """Run some steps; return the time of one."""
        assert self.process.stdin is not None
        print(steps, file=self.process.stdin, flush=True)
        answer = self.answer()
        return Step(answer["seconds"] / steps, answer["cpu_seconds"] / steps)

    def stop(self) -> None:
        """Stop it, read its final output, and wait for its exit."""
        with self.process:
            assert self.process.stdin is not None
            self.process.stdin.close()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()

    @property
    def compiled(self) -> int:
        """How many times XLA compiled in it."""
        counts = COMPILED.findall(self.log.read_text("utf-8", "replace"))
        return sum({name: int(times) for name, times in counts}.values())

    @property
    def traced(self) -> str:
        """How many times the bundled job's loop was traced, known after the end."""
        return self.log.read_text("utf-8", "replace").rpartition("traced ")[2].strip()


def pretraining() -> Iterator[Figure]:
    """Tokens per second of each implementation, alternating, and what the bundled job compiled."""
    for name, sizes in SIZES.items():
        model = {"size": name, **sizes, **SHAPE}
        with tempfile.TemporaryDirectory(prefix="tpuctl-bench-") as folder, ExitStack() as stack:
            batches = write_batches(Path(folder, "batches.npz"), model)
            programs: dict[str, Program] = {}
            for way in WAYS:
                try:
                    log = Path(folder, f"{len(programs)}.log")
                    program = Program(way, batches, model, log)
                    stack.callback(program.stop)
                    # One after another: concurrent compilation would distort the figures.
                    yield first_step(name, way, program.answer())
                    programs[way] = program
                except RuntimeError as error:
                    yield Figure(f"{name}: {way}", "not measured", str(error), has_failed=True)
            yield from compared(name, model, take_turns(programs))
            stack.close()
            yield from counted(name, programs)


def first_step(name: str, way: str, answer: Mapping[str, Any]) -> Figure:
    """Show that an implementation trains the same model, starting from random weights."""
    return Figure(
        f"{name}: {way} begins with",
        f"{answer['parameters']:,} weights, loss {answer['first_loss']:.2f}",
        goal=f"ln {SHAPE['vocabulary']:,} = {math.log(SHAPE['vocabulary']):.2f}",
    )


def take_turns(
    programs: Mapping[str, Program], rounds: int = ROUNDS, seconds: float = SECONDS_A_ROUND
) -> dict[str, list[Step]]:
    """Return the time of a step of each program in each round; a first round warms up."""
    steps = dict.fromkeys(programs, 2)
    found: dict[str, list[Step]] = {way: [] for way in programs}
    for turn in range(rounds + 1):
        for way, program in programs.items():
            step = program.take_steps(steps[way])
            if turn:
                found[way].append(step)
            else:
                steps[way] = max(2, round(seconds / step.seconds))
    return found


def compared(
    name: str, model: Mapping[str, Any], timings: Mapping[str, list[Step]]
) -> Iterator[Figure]:
    """Compare the speed of each with that of the bundled job."""
    tokens = model["batch"] * model["length"]
    job_steps = timings["the bundled job"]
    for way, other_steps in timings.items():
        # The two of a round ran one after the other, under the same load.
        pairs = list(zip(other_steps, job_steps, strict=True))
        clock = median(their.seconds / our.seconds for their, our in pairs)
        cpu_ratio = median(their.cpu_seconds / our.cpu_seconds for their, our in pairs)
        comparison = ""
        if way == "the bundled job, XLA":
            comparison = f"a step takes {clock:.2f} × that without ({cpu_ratio:.2f} × the CPU time)"
        elif way != "the bundled job":
            comparison = f"the bundled job is {clock:.2f} × as fast ({cpu_ratio:.2f} × by CPU time)"
        seconds = median(step.seconds for step in other_steps)
        value = f"{tokens / seconds:,.0f} tokens/s, {1000 * seconds:.0f} ms a step"
        goal = f"≥ {GOALS[way]} ×" if way in GOALS else ""
        yield Figure(f"{name}: {way}", value, comparison, goal)


def counted(name: str, programs: Mapping[str, Program]) -> Iterator[Figure]:
    for way in ("the bundled job", "the bundled job, XLA"):
        if way in programs:
            program = programs[way]
            value = f"{program.traced} traced, {program.compiled} compiled by XLA"
            goal = "1 traced, 1 compiled" if "XLA" in way else "1 traced"
            yield Figure(f"{name}: functions of {way}", value, goal=goal)
