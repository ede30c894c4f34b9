"""A job's progress, from the end of its log, and its text."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.job_records import job_record
from tpuctl.model.jobs.explanation import relevant_lines
from tpuctl.model.jobs.job import JobStatus, WorkerRecord
from tpuctl.model.logs.progress import Progress, progress_of
from tpuctl.model.status.snapshot import JobSnapshot
from tpuctl.model.workers.chip_metrics import ChipMetrics
from tpuctl.view.progress.job_progress import job_facts, job_sentence
from tpuctl.view.responses.jobs import JobSnapshot as JobSnapshotResponse

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
        "epoch": None,
    }


def job(**changes: Any) -> JobSnapshot:
    numbers = changes.pop("numbers", (0, 1, 2, 4, 5))
    chips = changes.pop("chips", {})
    record = job_record(
        id="20260102-030405-quartz",
        script="[b]train.py",
        worker_count=max(numbers) + 1,
        workers=numbers,
        attempt=changes.pop("attempt", 1),
        submitted=NOW,
    )
    states = changes.pop("states", ("running", "running", "running", "preparing"))
    workers = {
        number: WorkerRecord(
            job=record.id,
            attempt=1,
            worker=number,
            state=state,
            started=NOW,
            exit_code=None,
            chips=chips.get(number),
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


GIB = 2**30


def sample(*duties: float, used: float = 10, at: datetime = NOW) -> ChipMetrics:
    """Of chips with 31.25 GiB each, of which the last one is the fullest."""
    return ChipMetrics(
        at=at,
        duty_cycle_percent=duties,
        hbm_used_bytes=[GIB] * (len(duties) - 1) + [int(used * GIB)],
        hbm_total_bytes=[int(31.25 * GIB)] * len(duties),
    )


def absent(reason: str) -> ChipMetrics:
    return ChipMetrics(at=NOW, absence=reason)


def chip_text(numbers: tuple[int, ...], chips: dict[int, ChipMetrics]) -> tuple[list[str], str]:
    """What is shown of chips: lines of the table, and the rest of the sentence."""
    states = ("running",) * len(numbers)
    running = job(numbers=numbers, chips=chips, states=states, progress=Progress())
    lines = [line for _, line in job_facts(running, NOW)][1 + (len(numbers) > 1) :]
    return lines, job_sentence(running, NOW).removeprefix("job quartz running").removeprefix(", ")


def test_chips_of_few_workers_are_listed() -> None:
    text = "duty cycle 95%, HBM 18.4 of 31.2 GiB"
    assert chip_text((0,), {0: sample(100, 90, used=18.4)}) == ([text], text)
    none = "no chip metrics: the local cloud has no TPUs"
    assert chip_text((0,), {0: absent("the local cloud has no TPUs")}) == ([none], none)
    assert chip_text((0,), {}) == ([], "")
    old = {0: sample(97, at=NOW - timedelta(minutes=6))}
    assert chip_text((0,), old)[0] == ["no chip metrics: no new values for 5 min"]
    chips = {0: sample(97), 1: sample(96), 2: sample(95, used=20), 3: absent("reason")}
    assert chip_text((0, 1, 2, 3), chips) == (
        [
            "worker 0: duty cycle 97%, HBM 10.0 of 31.2 GiB",
            "worker 1: duty cycle 96%, HBM 10.0 of 31.2 GiB",
            "worker 2: duty cycle 95%, HBM 20.0 of 31.2 GiB",
            "no chip metrics for worker 3: reason",
        ],
        "duty cycle 96% (lowest: 95%, worker 2), HBM at most 20.0 of 31.2 GiB (worker 2), "
        "no chip metrics for worker 3: reason",
    )
    ended = job(numbers=(0,), chips={0: sample(97)}, states=("failed",), progress=Progress())
    assert "duty" not in str(job_facts(ended, NOW)) + job_sentence(ended, NOW)
    assert JobSnapshotResponse.of(ended).as_json()["chip_metrics"] == {}


def test_chips_of_64_workers_are_summarized() -> None:
    numbers = tuple(range(64))
    chips = {number: sample(90) for number in numbers}
    chips |= {17: sample(10, 14), 40: sample(90, used=30)}
    summary = "duty cycle 89% (lowest: 12%, worker 17), HBM at most 30.0 of 31.2 GiB (worker 40)"
    assert chip_text(numbers, chips) == ([summary], summary)
    chips |= {number: absent("reason") for number in (3, 9, 10, 11)}
    assert chip_text(numbers, chips)[0] == [summary, "no chip metrics for workers 3 9-11: reason"]
    chips = {number: absent("reason") for number in numbers}
    assert chip_text(numbers, chips)[0] == ["no chip metrics: reason"]


def test_chips_in_json() -> None:
    chips = {0: sample(97.5, math.nan), 1: absent("reason")}
    data = JobSnapshotResponse.of(job(chips=chips)).as_json()["chip_metrics"]
    assert json.loads(json.dumps(data, allow_nan=False)) == {
        "0": {
            "at": "2026-01-02T03:04:05+00:00",
            "absence": None,
            "duty_cycle_percent": [97.5, "nan"],
            "hbm_used_bytes": [GIB, 10 * GIB],
            "hbm_total_bytes": [33554432000, 33554432000],
        },
        "1": {
            "at": "2026-01-02T03:04:05+00:00",
            "absence": "reason",
            "duty_cycle_percent": [],
            "hbm_used_bytes": [],
            "hbm_total_bytes": [],
        },
    }


def test_job_snapshot_in_json() -> None:
    data = JobSnapshotResponse.of(job()).as_json()
    assert data["id"] == "20260102-030405-quartz"
    assert data["worker_states"] == {
        "0": "running",
        "1": "running",
        "2": "running",
        "4": "preparing",
    }
    assert data["progress"] == {
        "step": 1200,
        "loss": 2.31314,
        "tokens_per_second": 45210.4,
        "epoch": None,
    }
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
