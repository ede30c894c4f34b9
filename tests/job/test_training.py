"""The whole job on the shipped sample: it learns, is interrupted, goes on, refuses bad input."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.tensorflow

JOB = Path(__file__).resolve().parents[2] / "templates" / "jobs" / "bert-pretraining"
SMALL = [
    *("--text", str(JOB / "sample"), "--vocabulary-size", "400", "--sequence-length", "32"),
    *("--batch", "16", "--steps", "40", "--learning-rate", "3e-3", "--steps-per-call", "10"),
]


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
    output, errors = process.communicate(timeout=120)
    return process.returncode, output.splitlines(), errors


def rows(lines: list[str]) -> dict[int, dict[str, float]]:
    found = [json.loads(line) for line in lines if line.startswith("{")]
    return {row["step"]: row for row in found}


def test_learns_and_goes_on_where_it_was_interrupted(
    runs: Runs, tmp_path: Path, slice_of_two: str
) -> None:
    alone = runs.start(tmp_path / "alone")
    machine = {"GCE_METADATA_HOST": slice_of_two, "TPU_NAME": "local"}
    shared = runs.start(tmp_path / "shared", **machine)
    assert shared.stdout is not None
    for line in shared.stdout:
        if line.startswith('{"step": 10,'):
            shared.send_signal(signal.SIGTERM)
            break
    code, said, errors = finish(shared)
    assert code == 143, errors
    saved = int(said[-1].split()[3])
    assert said[-1] == f"stopped at step {saved} of 40; the next run goes on from there"
    assert 10 <= saved < 40

    code, undisturbed, errors = finish(alone)
    assert code == 0, errors
    whole = rows(undisturbed)
    assert list(whole) == [1, 10, 20, 30, 40]
    assert set(whole[1]) == {
        "step",
        "loss",
        "mlm_accuracy",
        "gradient_norm",
        "tokens_per_second",
        "learning_rate",
    }
    assert whole[1]["loss"] == pytest.approx(6.0, abs=0.2)  # ln 400: it knows nothing yet
    assert whole[40]["loss"] < whole[1]["loss"] - 0.5
    assert (tmp_path / "alone" / "checkpoints" / "model-40.index").exists()

    code, resumed, errors = finish(runs.start(tmp_path / "shared", **machine))
    assert code == 0, errors
    assert any(line.startswith(f"resuming from step {saved} ") for line in resumed)
    assert [line.split(",")[1].split()[0] for line in resumed if line.startswith("tokenizer")] == [
        "kept"
    ]
    later = rows(resumed)
    assert min(later) == saved + 1
    # One replica undisturbed and two interrupted see the same batches in the same order.
    for step in (step for step in (30, 40) if step - 10 >= saved + 1):
        assert later[step]["loss"] == pytest.approx(whole[step]["loss"], abs=2e-3)
    assert later[40]["learning_rate"] == whole[40]["learning_rate"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--text", "{empty}"], 2, "no .txt files in {empty}"),
        (["--batch", "6", "--replicas", "4"], 2, "try 4 or 8"),
        (["--output", "{empty}/file/below"], 1, "cannot write {empty}/file/below"),
    ],
    ids=["no text", "batch", "output"],
)
def test_bad_input_is_one_line(
    runs: Runs,
    tmp_path: Path,
    arguments: list[str],
    code: int,
    said: str,
) -> None:
    (tmp_path / "file").touch()
    filled = [argument.format(empty=tmp_path) for argument in arguments]
    found, _, errors = finish(runs.start(tmp_path / "out", *filled))
    assert found == code, errors
    assert errors.startswith("error: ") and len(errors.splitlines()) == 1
    assert said.format(empty=tmp_path) in errors
