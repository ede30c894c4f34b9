"""The whole job on its sample: training, interruption, and exact resumption."""

from __future__ import annotations

import hashlib
import json
import random
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.support.http_server import QuietHandler, serving_http
from tpuctl.model.logs.log_metrics import MetricReader

pytestmark = [pytest.mark.long, pytest.mark.tensorflow, pytest.mark.timeout(900)]

JOB = Path(__file__).resolve().parents[2] / "templates" / "jobs" / "bert-pretraining"
CHECKS = Path(__file__).parent / "checks"
STEPS, EVERY = 20, 2
SMALL = [
    *("--text", str(JOB / "sample"), "--vocabulary-size", "400", "--sequence-length", "16"),
    *("--batch", "8", "--steps", str(STEPS), "--learning-rate", "3e-3", "--dropout", "0.1"),
    *("--steps-per-call", str(EVERY), "--checkpoint-steps", "4"),
]
LINES = [1, *range(EVERY, STEPS + 1, EVERY)]


class Slice(QuietHandler):
    """The metadata server of a machine with eight chips, of which the CPU simulates two."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"v5litepod-8")


@pytest.fixture
def slice_of_two() -> Iterator[str]:
    with serving_http(Slice) as server:
        yield f"127.0.0.1:{server.server_port}"


class Runs:
    """Starts the job in several folders; kills leftover processes after the test."""

    def __init__(
        self, python: Path, forked: list[str], environment: dict[str, str], folder: Path
    ) -> None:
        self.python, self.forked, self.environment = python, forked, environment
        self.errors = (folder / "errors").open("w+", encoding="utf-8")
        self.processes: list[subprocess.Popen[str]] = []

    def fork(self, output: Path, **environment: str) -> subprocess.Popen[str]:
        """Start a run in a process that has loaded TensorFlow."""
        return self._start(self.forked, output, environment)

    def start(self, output: Path, **environment: str) -> subprocess.Popen[str]:
        """Start a run like a user: not forked, its hashes of strings have another seed."""
        return self._start([self.python], output, environment)

    def _start(
        self, python: Sequence[str | Path], output: Path, environment: dict[str, str]
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*python, JOB / "pretrain.py", "--output", output, *SMALL],
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )
        self.processes.append(process)
        return process

    def finish(self, process: subprocess.Popen[str]) -> list[str]:
        """The lines of a run that succeeds."""
        assert process.stdout is not None
        lines = process.stdout.read().splitlines()
        assert process.wait(60) == 0, (lines, self.errors.seek(0), self.errors.read())
        return lines

    def end(self) -> None:
        for process in self.processes:
            with process:
                process.kill()
        self.errors.close()


@pytest.fixture
def runs(
    job_python: Path, forked_python: list[str], job_environment: dict[str, str], tmp_path: Path
) -> Iterator[Runs]:
    runs = Runs(job_python, forked_python, job_environment, tmp_path)
    yield runs
    runs.end()


def rows(lines: list[str]) -> dict[int, Mapping[str, float]]:
    """The values of training by step, as tpuctl reads them from the log."""
    points = MetricReader().feed("".join(f"{line}\n" for line in lines).encode())
    return {int(point.position or 0): point.values for point in points if "loss" in point.values}


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
        if line.startswith(f"step {step}/"):
            process.send_signal(number)
    return lines


def contents(output: Path) -> dict[str, str]:
    """Return hashes of the checkpoint, the exported model, the evaluation and all log lines."""
    checkpoint = output / "checkpoints" / f"model-{STEPS}.data-00000-of-00001"
    files = [checkpoint, output / "model" / "model.safetensors", output / "evaluation.json"]
    hashes = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    metrics = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in metrics] == LINES, "each line once"
    for row in metrics:
        row.pop("tokens_per_second")
    return {**hashes, "metrics": json.dumps(metrics)}


def kill_at_random(runs: Runs, folder: Path, seed: int, times: int, **machine: str) -> None:
    """Compare a run killed or stopped at random steps with an uninterrupted one."""
    alone = runs.start(folder / "alone", **machine)
    generator = random.Random(seed)
    signals = [signal.SIGKILL, signal.SIGTERM] * times
    seen: dict[int, tuple[float, ...]] = {}
    for step, number in zip(sorted(generator.sample(LINES[1:-1], times)), signals, strict=False):
        process = runs.fork(folder / "shared", **machine)
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
    resumed = runs.finish(runs.fork(folder / "shared", **machine))
    assert any(line.startswith("resuming from step ") for line in resumed)
    seen |= losses(resumed)
    undisturbed = runs.finish(alone)
    whole = losses(undisturbed)
    assert list(whole) == LINES
    assert seen == whole
    assert contents(folder / "shared") == contents(folder / "alone")
    program = subprocess.run(
        [*runs.forked, CHECKS / "curve_steps.py", folder / "shared" / "tensorboard"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(program.stdout) == LINES, "each line is in TensorBoard once"
    first, last = rows(undisturbed)[1], rows(undisturbed)[STEPS]
    assert first["loss"] == pytest.approx(6.0, abs=0.25)  # ln 400: random weights
    assert last["loss"] < first["loss"] - 0.4


def test_interrupted_training_resumes_bit_for_bit(
    runs: Runs, tmp_path: Path, slice_of_two: str
) -> None:
    kill_at_random(runs, tmp_path, 7, 2)
    # A finished training stays finished with another number of replicas.
    machine = {"GCE_METADATA_HOST": slice_of_two, "TPU_NAME": "local"}
    lines = runs.finish(runs.fork(tmp_path / "alone", **machine))
    assert lines[-1] == f"already trained to step {STEPS}; increase --steps to continue"
    assert any("simulating 2 replicas" in line for line in lines)
    (of_records,) = (line for line in lines if line.startswith("records: "))
    assert ", kept (" in of_records


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_interrupted_training_on_two_replicas_resumes_bit_for_bit(
    runs: Runs, tmp_path: Path, slice_of_two: str
) -> None:
    machine = {"GCE_METADATA_HOST": slice_of_two, "TPU_NAME": "local"}
    kill_at_random(runs, tmp_path, 5, 1, **machine)
