"""A job's progress, from the end of its log, and its text."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tpuctl.model.explanation import relevant_lines
from tpuctl.model.job import JobRecord, JobStatus, WorkerRecord
from tpuctl.model.progress import Progress, progress_of
from tpuctl.model.snapshot import JobSnapshot
from tpuctl.view.job_progress import job_facts, job_sentence
from tpuctl.view.responses.stacks import JobSnapshot as JobSnapshotResponse

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (b"", Progress()),
        (b"plain\n[1, 2]\n{broken\n", Progress()),
        (b'{"step": 1, "loss": 2.5, "tokens_per_second": 10}\n', Progress(1, 2.5, 10.0)),
        (b'{"step": 1, "loss": 9}\n{"step": 2, "loss": 8}\nwords\n', Progress(2, 8.0)),
        (b'{"step": 1, "loss": 9}\n{"step": 2, "eval": 8}\n', Progress(2, 9.0)),
        (b'"loss": 9, "step": 5}\n{"step": 2}', Progress(2)),
        (b'{"step": 3}\n{"step": 4, "lo', Progress(3)),
        (b'{"step": 3}\r{"step": 4}\r', Progress(4)),
        (b'{"step": true, "loss": "2"}\n', Progress()),
        (b'{"step": 2.5}\n', Progress()),
        (b'{"step": 1e3, "loss": 1e400}\n', Progress(1000, math.inf)),
        (b'{"step": {"step": 1}}\n{"other": 1}\n', Progress()),
        (b"\xff\xfe{\n" + b'{"step": 7}\n', Progress(7)),
        (b"{" * 5000 + b"}" * 5000 + b"\n" + b"[" * 100_000 + b"\n", Progress()),
        (b'{"loss": 1' + b"0" * 400 + b"}\n", Progress()),
    ],
)
def test_progress_uses_last_value_of_each_key(log: bytes, expected: Progress) -> None:
    assert progress_of(log) == expected


def test_non_finite_values_are_shown_as_text() -> None:
    progress = progress_of(b'{"step": 5, "loss": NaN}\n')
    assert progress.loss is not None and math.isnan(progress.loss)
    data = JobSnapshotResponse.of(job(progress=progress)).as_json()
    assert json.loads(json.dumps(data, allow_nan=False))["progress"] == {
        "step": 5,
        "loss": "nan",
        "tokens_per_second": None,
    }


def job(**changes: Any) -> JobSnapshot:
    record = JobRecord(
        id="20260102-030405-quartz",
        stack="bert",
        project="my-project",
        zone="europe-west4-a",
        node="bert-tpu",
        bucket="bucket",
        script="[b]train.py",
        bundle="0" * 64,
        worker_count=6,
        workers=(0, 1, 2, 4, 5),
        attempt=changes.pop("attempt", 1),
        submitted=NOW,
    )
    states = changes.pop("states", ("running", "running", "running", "preparing"))
    workers = {
        number: WorkerRecord(
            job=record.id, attempt=1, worker=number, state=state, started=NOW, exit_code=None
        )
        for number, state in zip(record.workers, states, strict=False)
    }
    extra = {
        "status": JobStatus("running"),
        "progress": Progress(1200, 2.31314, 45210.4),
        "logged": NOW - timedelta(seconds=3),
    }
    return JobSnapshot(record, workers=workers, **{**extra, **changes})


def test_text_of_running_job() -> None:
    assert job_facts(job(attempt=2), NOW) == [
        ("job", "20260102-030405-quartz: running, attempt 2"),
        ("", "step 1,200, loss 2.3131, 45,210 tokens/s"),
        ("", "workers 0-2 running, 4 preparing, 5 unknown"),
    ]
    assert job_sentence(job(progress=Progress()), NOW) == "job quartz running"
    silent = job(progress=Progress(), logged=NOW - timedelta(minutes=14))
    assert job_sentence(silent, NOW) == "job quartz running, no log output for 14 min"
    over = job(status=JobStatus("failed", 3, 0, "why", NOW), logged=NOW - timedelta(days=1))
    assert job_sentence(over, NOW).startswith("job quartz failed with exit code 3, step 1,200")


def test_job_snapshot_in_json() -> None:
    data = JobSnapshotResponse.of(job()).as_json()
    assert data["id"] == "20260102-030405-quartz"
    assert data["worker_states"] == {
        "0": "running",
        "1": "running",
        "2": "running",
        "4": "preparing",
    }
    assert data["progress"] == {"step": 1200, "loss": 2.31314, "tokens_per_second": 45210.4}
    assert data["last_log_at"] == "2026-01-02T03:04:02+00:00"


def test_relevant_log_lines() -> None:
    log = b"\n".join(b"line %d" % number for number in range(100)) + b"\n\n"
    assert relevant_lines(log, "line 50") == tuple(f"line {number}" for number in range(44, 54))
    assert relevant_lines(log, "  line 99 ")[-1] == "line 99"
    assert relevant_lines(log, "nowhere") == tuple(f"line {number}" for number in range(91, 100))
    assert relevant_lines(b"", "x") == ()
    assert relevant_lines(b"\x1b[31mred\x1b[0m \x1b]0;title\x07end\x00\n", "red end") == (
        "red end",
    )
    assert relevant_lines(b"bar 1%\rbar 2%\r\nError: bad \xff\n", "Error: bad")[-1].startswith(
        "Err"
    )
    assert max(map(len, relevant_lines(b"x" * 10_000, ""))) <= 400
