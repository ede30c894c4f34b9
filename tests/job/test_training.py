"""The whole job on the shipped sample: it learns, is interrupted, goes on bit for bit."""

from __future__ import annotations

import hashlib
import json
import random
import signal
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900)]

JOB = Path(__file__).resolve().parents[2] / "templates" / "jobs" / "bert-pretraining"
STEPS, EVERY = 40, 5
SMALL = [
    *("--text", str(JOB / "sample"), "--vocabulary-size", "400", "--sequence-length", "32"),
    *("--batch", "16", "--steps", str(STEPS), "--learning-rate", "3e-3", "--dropout", "0.1"),
    *("--steps-per-call", str(EVERY), "--checkpoint-steps", "10"),
]
LINES = [1, *range(EVERY, STEPS + 1, EVERY)]


class Slice(BaseHTTPRequestHandler):
    """The metadata server of a machine whose slice has two replicas."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"v5litepod-2")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def slice_of_two() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Slice) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class Runs:
    """Starts the job in several folders; none outlives its test."""

    def __init__(self, python: Path, environment: dict[str, str]) -> None:
        self.python, self.environment = python, environment
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, output: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [self.python, JOB / "pretrain.py", "--output", output, *SMALL, *arguments],
            env={**self.environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def end(self) -> None:
        for process in self.processes:
            with process:
                process.kill()


@pytest.fixture
def runs(job_python: Path, job_environment: dict[str, str]) -> Iterator[Runs]:
    runs = Runs(job_python, job_environment)
    yield runs
    runs.end()


def finish(process: subprocess.Popen[str]) -> tuple[int, list[str], str]:
    output, errors = process.communicate(timeout=240)
    return process.returncode, output.splitlines(), errors


def rows(lines: list[str]) -> dict[int, dict[str, float]]:
    found = [json.loads(line) for line in lines if line.startswith("{")]
    return {row["step"]: row for row in found if "loss" in row}


def losses(lines: list[str]) -> dict[int, tuple[float, ...]]:
    """What every line says but for the speed, which is never the same."""
    return {
        step: tuple(value for name, value in row.items() if name != "tokens_per_second")
        for step, row in rows(lines).items()
    }


def interrupt(process: subprocess.Popen[str], step: int, number: int) -> list[str]:
    """Send a signal once the line of a step is out; return all lines of the run."""
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line.rstrip("\n"))
        if line.startswith(f'{{"step": {step},'):
            process.send_signal(number)
    return said


def contents(output: Path) -> dict[str, str]:
    """Hashes of what training leaves: all weights, the optimizer's numbers, the exported model."""
    checkpoint = output / "checkpoints" / f"model-{STEPS}.data-00000-of-00001"
    files = [checkpoint, output / "model" / "model.safetensors", output / "evaluation.json"]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def kill_at_random(runs: Runs, folder: Path, seed: int, times: int, **machine: str) -> None:
    """Compare a run interrupted at random steps, in both ways, with one left alone."""
    alone = runs.start(folder / "alone", **machine)
    generator = random.Random(seed)
    signals = [signal.SIGKILL, signal.SIGTERM] * times
    seen: dict[int, tuple[float, ...]] = {}
    for step, number in zip(sorted(generator.sample(LINES[1:-1], times)), signals, strict=False):
        process = runs.start(folder / "shared", **machine)
        said = interrupt(process, step, number)
        assert process.wait(60) == (-number if number == signal.SIGKILL else 143), said
        if number == signal.SIGTERM and max(rows(said)) < STEPS:
            reached = max(rows(said))
            assert f"checkpoint: {folder}/shared/checkpoints/model-{reached}" in said
            assert (
                said[-1] == f"stopped at step {reached} of {STEPS}; the next run goes on from there"
            )
        seen |= losses(said)
    code, resumed, errors = finish(runs.start(folder / "shared", **machine))
    assert code == 0, errors
    assert any(line.startswith("resuming from step ") for line in resumed)
    seen |= losses(resumed)
    code, undisturbed, errors = finish(alone)
    assert code == 0, errors
    whole = losses(undisturbed)
    assert list(whole) == LINES
    assert seen == whole
    assert contents(folder / "shared") == contents(folder / "alone")
    first, last = rows(undisturbed)[1], rows(undisturbed)[STEPS]
    assert first["mlm_loss"] == pytest.approx(6.0, abs=0.25)  # ln 400: it knows nothing yet
    assert last["mlm_loss"] < first["mlm_loss"] - 0.4


def test_goes_on_bit_for_bit_where_it_was_interrupted(
    runs: Runs, tmp_path: Path, slice_of_two: str
) -> None:
    kill_at_random(runs, tmp_path, 7, 2)
    # What is trained is trained, also for another number of replicas.
    machine = {"GCE_METADATA_HOST": slice_of_two, "TPU_NAME": "local"}
    code, said, errors = finish(runs.start(tmp_path / "alone", **machine))
    assert code == 0, errors
    assert said[-1] == f"already trained to step {STEPS}; more --steps would go on"
    assert any("playing 2 replicas" in line for line in said)
    assert [line.split(",")[1].split()[0] for line in said if line.startswith("tokenizer")] == [
        "kept"
    ]


@pytest.mark.soak
@pytest.mark.release("more kills of the training that `make test` interrupts")
@pytest.mark.timeout(900)
def test_more_kills_with_two_replicas(runs: Runs, tmp_path: Path, slice_of_two: str) -> None:
    machine = {"GCE_METADATA_HOST": slice_of_two, "TPU_NAME": "local"}
    kill_at_random(runs, tmp_path, 1, 4, **machine)
