"""The whole job on its sample: training, interruption, and exact resumption."""

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
    """Starts the job in several folders; kills leftover processes after the test."""

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
    parsed = [json.loads(line) for line in lines if line.startswith("{")]
    return {row["step"]: row for row in parsed if "loss" in row}


def losses(lines: list[str]) -> dict[int, tuple[float, ...]]:
    """Return the values of every log line, except the speed, which varies."""
    return {
        step: tuple(value for name, value in row.items() if name != "tokens_per_second")
        for step, row in rows(lines).items()
    }


def interrupt(process: subprocess.Popen[str], step: int, number: int) -> list[str]:
    """Send a signal after the log line of a step; return all lines of the run."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip("\n"))
        if line.startswith(f'{{"step": {step},'):
            process.send_signal(number)
    return lines


def contents(output: Path) -> dict[str, str]:
    """Return hashes of the checkpoint, the exported model and the evaluation."""
    checkpoint = output / "checkpoints" / f"model-{STEPS}.data-00000-of-00001"
    files = [checkpoint, output / "model" / "model.safetensors", output / "evaluation.json"]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def kill_at_random(runs: Runs, folder: Path, seed: int, times: int, **machine: str) -> None:
    """Compare a run killed or stopped at random steps with an uninterrupted one."""
    alone = runs.start(folder / "alone", **machine)
    generator = random.Random(seed)
    signals = [signal.SIGKILL, signal.SIGTERM] * times
    seen: dict[int, tuple[float, ...]] = {}
    for step, number in zip(sorted(generator.sample(LINES[1:-1], times)), signals, strict=False):
        process = runs.start(folder / "shared", **machine)
        lines = interrupt(process, step, number)
        assert process.wait(60) == (-number if number == signal.SIGKILL else 143), lines
        if number == signal.SIGTERM and max(rows(lines)) < STEPS:
            reached = max(rows(lines))
            assert f"checkpoint: {folder}/shared/checkpoints/model-{reached}" in lines
            assert (
                lines[-1]
                == f"stopped at step {reached} of {STEPS}; the next run resumes from there"
            )
        seen |= losses(lines)
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
    assert first["mlm_loss"] == pytest.approx(6.0, abs=0.25)  # ln 400: random weights
    assert last["mlm_loss"] < first["mlm_loss"] - 0.4


def test_interrupted_training_resumes_bit_for_bit(
    runs: Runs, tmp_path: Path, slice_of_two: str
) -> None:
    kill_at_random(runs, tmp_path, 7, 2)
    # A finished training stays finished with another number of replicas.
    machine = {"GCE_METADATA_HOST": slice_of_two, "TPU_NAME": "local"}
    code, lines, errors = finish(runs.start(tmp_path / "alone", **machine))
    assert code == 0, errors
    assert lines[-1] == f"already trained to step {STEPS}; increase --steps to continue"
    assert any("simulating 2 replicas" in line for line in lines)
    assert [line.split(",")[1].split()[0] for line in lines if line.startswith("tokenizer")] == [
        "kept"
    ]


@pytest.mark.soak
@pytest.mark.release("more kills of the training that `make test` interrupts")
@pytest.mark.timeout(900)
def test_repeated_kills_with_two_replicas(runs: Runs, tmp_path: Path, slice_of_two: str) -> None:
    machine = {"GCE_METADATA_HOST": slice_of_two, "TPU_NAME": "local"}
    kill_at_random(runs, tmp_path, 1, 4, **machine)
