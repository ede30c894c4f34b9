"""Job ids, names in the bucket, how worker states determine the job's, and log prefixes."""

from __future__ import annotations

import io
import json
import random
from contextlib import redirect_stdout, suppress
from datetime import UTC, datetime, timedelta, timezone
from math import isfinite
from typing import Any, get_args

import pytest
from hypothesis import strategies as st

from tests.support.job_records import job_record
from tests.support.properties import given
from tpuctl.errors import Conflict, RemoteFailed
from tpuctl.jobs.log_position import LogPosition
from tpuctl.jobs.logs import parse_worker
from tpuctl.jobs.shipped.supervision import supervisor, uploader
from tpuctl.model.jobs.attempt import Attempt, Placement, Verdict
from tpuctl.model.jobs.hang import Hang
from tpuctl.model.jobs.job import (
    ENDED,
    WORDS,
    JobRecord,
    JobSummary,
    WorkerRecord,
    WorkerState,
    job_status,
    new_job_id,
)
from tpuctl.model.text.record_parsing import parse_answer, parse_record
from tpuctl.model.workers.chip_metrics import ChipMetrics
from tpuctl.view.jobs.explanation import STATES
from tpuctl.view.jobs.job import show_jobs
from tpuctl.view.responses import jobs

NOON = datetime(2026, 3, 4, 12, 0, 0, tzinfo=UTC)


def job(*workers: int) -> JobRecord:
    return job_record(script="job.py", worker_count=max(workers) + 1, workers=workers)


def ended(worker: int, state: str, second: int = 0, **more: Any) -> WorkerRecord:
    return WorkerRecord.model_validate(
        {
            "job": "20260304-120000-acorn",
            "attempt": 1,
            "worker": worker,
            "state": state,
            "started": NOON,
            "finished": NOON + timedelta(seconds=second),
            **more,
        }
    )


def test_job_ids_sort_by_time_and_end_in_different_words() -> None:
    same_time_in_korea = NOON.astimezone(timezone(timedelta(hours=9)))
    stamp, time, word = new_job_id(same_time_in_korea, random.Random(1)).split("-")
    assert (stamp, time) == ("20260304", "120000")
    assert word.isalpha() and word.islower()
    choice = random.Random(1)
    assert len({new_job_id(NOON, choice) for _ in range(20)}) > 10
    choice = random.Random(1)
    ids: list[str] = []
    for _ in range(2 * len(WORDS.split()) + 1):
        ids.append(new_job_id(NOON, choice, ids))
    words = [job_id.removeprefix("20260304-120000-") for job_id in ids]
    assert len({*words}) == len(words)
    assert {*words[: len(WORDS.split())]} == {*WORDS.split()}
    assert all(word.endswith("2") for word in words[len(WORDS.split()) : -1])
    assert words[-1].endswith("3")


def test_record_has_names_of_objects_and_variables() -> None:
    record = job(0, 2)
    assert record.object_name == "tpuctl/jobs/20260304-120000-acorn/job.json"
    prefix = "tpuctl/jobs/20260304-120000-acorn/attempts/1"
    assert record.log_name(2) == f"{prefix}/worker-2.log"
    assert record.record_name(2) == f"{prefix}/worker-2.json"
    assert record.output.startswith("gs://b/tpuctl/jobs/20260304-120000-acorn/")
    text = job(0).model_copy(update={"env": ("TOKEN",)}).model_dump_json()
    assert '"env":["TOKEN"]' in text
    record = ended(0, "succeeded", new_field="x")
    assert WorkerRecord.model_validate_json(record.model_dump_json()) == record


@pytest.mark.parametrize(
    ("workers", "state", "code", "worker"),
    [
        ([], "submitted", None, None),
        ([ended(0, "preparing"), ended(1, "preparing")], "preparing", None, None),
        ([ended(0, "running"), ended(1, "preparing")], "running", None, None),
        ([ended(0, "succeeded")], "running", None, None),  # worker 1 has not reported
        ([ended(0, "failed", exit_code=3), ended(1, "running")], "running", None, None),
        ([ended(0, "succeeded"), ended(1, "succeeded")], "succeeded", 0, None),
        (
            [ended(0, "failed", 2, exit_code=3), ended(1, "failed", 1, exit_code=4)],
            "failed",
            4,
            1,
        ),
        (
            [
                ended(0, "stopped", 1, exit_code=143, cause="worker"),
                ended(1, "failed", 2, exit_code=9),
            ],
            "failed",
            9,
            1,
        ),
        ([ended(0, "succeeded"), ended(1, "failed", exit_code=75)], "failed", 75, 1),
        ([ended(0, "stopped", exit_code=143), ended(1, "succeeded")], "stopped", 143, 0),
        ([ended(0, "timed_out"), ended(1, "stopped", cause="worker")], "timed_out", 124, 0),
        ([ended(0, "lost"), ended(1, "stopped", cause="worker")], "lost", 69, 0),
    ],
)  # fmt: skip
def test_job_status_of_workers(
    workers: list[WorkerRecord], state: str, code: int | None, worker: int | None
) -> None:
    status = job_status(job(0, 1), {record.worker: record for record in workers})
    assert (status.state, status.exit_code, status.worker) == (state, code, worker)


def test_job_status_of_other_workers_and_of_a_terminated_machine() -> None:
    status = job_status(job(0), {0: ended(0, "succeeded"), 1: ended(1, "failed", exit_code=1)})
    assert status.state == "succeeded"
    status = job_status(
        job(0), {0: ended(0, "failed", exit_code=143, signal=15, cause="terminated")}
    )
    assert (status.state, status.exit_code) == ("lost", 69)


def test_states_agree_in_all_programs_and_have_a_text() -> None:
    """The shipped files do not import tpuctl, so they have a separate list."""
    assert frozenset(supervisor.ENDED) == frozenset(uploader.ENDED) == ENDED
    assert set(STATES) == {"queued", "submitted", *get_args(WorkerState)} - {"ready"}


def test_command_of_a_record() -> None:
    record = job(0).model_copy(update={"script": "-x.py", "args": ("-y",)})
    assert record.argv == ("{python}", "./-x.py", "-y")
    assert record.command == "./-x.py -- -y"
    args = ("--password", "hush, hush", "--api-key=abc", "--steps", "9")
    record = job(0).model_copy(update={"script": "x.py", "args": args})
    assert "'hush, hush'" not in record.command_line and "abc" not in record.command
    assert record.command.endswith("--steps 9")
    assert record.argv[-5:] == args, "the job still gets them"


@pytest.mark.parametrize("name", ["../x", "a;id", "$(id)", "", "a b", "a\n"])
def test_record_with_invalid_id_is_rejected(name: str) -> None:
    """Anyone who may write to the bucket must not influence commands and paths."""
    text = job(0).model_copy(update={"id": name}).model_dump_json()
    with pytest.raises(ValueError, match="id"):
        JobRecord.model_validate_json(text)


ODD_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=10**18, max_value=10**400),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from(["", "9999-12-31T23:59:59+14:00", "2026-03-04T12:00:00", "0001-01-01T00:00Z"]),
    st.text(max_size=20),
    st.lists(st.integers(), max_size=3),
    st.recursive(st.none(), lambda inner: st.lists(inner, max_size=2), max_leaves=3),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=2),
)


def damaged(record: JobRecord | WorkerRecord | Attempt) -> st.SearchStrategy[bytes]:
    """The record's JSON with some of its fields changed, or cut off."""
    fields = record.model_dump(mode="json")
    changes = st.dictionaries(st.sampled_from(sorted(fields)), ODD_VALUES, min_size=1, max_size=3)
    texts = changes.map(lambda change: json.dumps({**fields, **change}).encode())
    whole = record.model_dump_json().encode()
    cut = st.integers(0, len(whole) - 1).map(lambda size: whole[:size])
    return texts | cut | st.just(b"[" * 1_000) | st.binary(max_size=20)


WORKER = ended(0, "failed", exit_code=1, cause="script", detail="x").model_copy(
    update={"hang": Hang(worker=0, detail="d"), "chips": ChipMetrics(at=NOON)}
)
VERDICT = Verdict(kind="failure", name="script", cause="c", at=NOON)
ATTEMPT = Attempt(number=2, placement=Placement(zone="z", node="n"), verdict=VERDICT, started=NOON)


@given(damaged(job(0)), damaged(WORKER), damaged(ATTEMPT))
def test_damaged_record_is_rejected_or_can_be_shown(
    job_text: bytes, worker_text: bytes, attempt_text: bytes
) -> None:
    """Whatever is accepted has values with which all readers can calculate."""
    record, worker, attempt = job(0), WORKER, ATTEMPT
    with suppress(Conflict):
        record = parse_record(JobRecord, job_text, "gs://b/job.json")
    with suppress(Conflict):
        worker = parse_worker(job(0), 0, worker_text, "gs://b/worker-0.json")
    with suppress(Conflict):
        attempt = parse_record(Attempt, attempt_text, "gs://b/attempt.json", number=2)
    status = job_status(record, {0: worker})
    summary = JobSummary(record.of(attempt), status, (attempt,))
    assert status.exit_code is None or 0 <= status.exit_code <= 255
    for moment in (record.submitted, worker.started, attempt.started, attempt.verdict.at):
        assert 0 < moment.timestamp() < 2**33
        assert moment.astimezone(timezone(timedelta(hours=14))).year
    if worker.chips is not None and worker.chips.duty_cycle_percent:
        assert isfinite(worker.chips.duty_cycle)
    with redirect_stdout(io.StringIO()):
        show_jobs([dict(jobs.ListedJob.of(summary, NOON))])
    text = json.dumps(jobs.Job.model_validate(summary).as_json(), default=str)
    assert json.loads(text, parse_constant=pytest.fail)


@pytest.mark.parametrize(
    "change", [{"worker": 1}, {"attempt": 2}, {"job": "20260304-120000-birch"}], ids=str
)
def test_record_of_other_worker_or_attempt_is_damaged(change: dict[str, Any]) -> None:
    text = WORKER.model_copy(update=change).model_dump_json().encode()
    with pytest.raises(Conflict, match=r"gs://b/worker-0\.json.*is not"):
        parse_worker(job(0, 1), 0, text, "gs://b/worker-0.json")


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"[]", b"\xff", b"[" * 1_000, b"{}", b'{"offset": null}', b'{"offset": -1}'),
        *(b'{"offset": NaN}', b'{"offset": 1e300}', b'{"offset": "0 --follow"}'),
        b'{"offset": 1' + b"0" * 5_000 + b"}",
    ],
    ids=lambda text: ascii(text[:20]),
)
def test_answer_of_hostile_machine_names_the_machine(text: bytes) -> None:
    with pytest.raises(RemoteFailed, match="worker 3"):
        parse_answer(LogPosition, text, "worker 3")
