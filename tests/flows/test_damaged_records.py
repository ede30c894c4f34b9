"""Commands meet records that are damaged or hostile: one line names the object, the rest works."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from tests.support.forked_cli import run_tpuctl
from tpuctl.api import Tpuctl
from tpuctl.errors import Conflict
from tpuctl.flows.reports.status import JobWatch
from tpuctl.model.jobs.job import JobRecord, WorkerRecord

GOOD = "20260304-000001-good"  # the last one
NOW = datetime(2026, 3, 4, tzinfo=UTC)
READERS = (
    ("explain",),
    ("logs",),
    ("wait",),
    ("stop",),
    ("report", "--output", "-"),
)


def job(stack: Tpuctl, name: str) -> JobRecord:
    return JobRecord(
        id=name,
        stack=stack.stack.name,
        project=stack.stack.project,
        zone=stack.stack.zone,
        node=stack.stack.names.node,
        bucket=stack.stack.bucket,
        script="job.py",
        bundle="0" * 64,
        worker_count=1,
        workers=(0,),
        submitted=NOW,
    )


def worker(record: JobRecord) -> dict[str, object]:
    ended = WorkerRecord(
        job=record.id, attempt=1, worker=0, state="succeeded", exit_code=0, started=NOW,
        finished=NOW, log_uploaded=True,
    )  # fmt: skip
    return ended.model_dump(mode="json")


async def test_job_of_another_stack_of_the_bucket_is_not_followed(
    make_stub_stack: Callable[..., Tpuctl],
) -> None:
    """To follow a job may mean to create its machines: not those of this stack."""
    stack = make_stub_stack()
    await stack.provision(await stack.plan())
    other = job(stack, GOOD).model_copy(update={"stack": "other"})
    await stack.store.put_bytes(other.object_name, other.model_dump_json().encode())
    record = await stack.job()
    assert record.stack == "other", "it is listed"
    for work in (stack.follow(record), stack.stop(record)):
        with pytest.raises(Conflict, match="runs on stack other") as caught:
            await work
        assert "--stack other" in caught.value.diagnostics[0].hint
    of_stack = job(stack, "20260304-000000-mine")
    await stack.store.put_bytes(of_stack.object_name, of_stack.model_dump_json().encode())
    assert (await stack.job()).id == of_stack.id, "the one that is meant"
    assert (await stack.down(delete_bucket=True)).leaks == ()


DAMAGED_JOBS: dict[str, object] = {
    "binary": b"\xff\x00\xfe",
    "nested": b"[" * 50_000,
    "large": b" " * (65 << 20),
    "time": {"submitted": "9999-12-31T23:59:59Z"},
    "number": {"worker_count": 10**300},
    "worker": {"workers": [-1]},
    "other": {"id": "20260304-000000-other-job"},
    "type": {"args": 5},
}
DAMAGED_WORKERS: dict[str, object] = {
    "attempt": {"attempt": 7},
    "infinite": b'{"started": Infinity}',
    "far": {"finished": 1e300},
    "offset": {"log_bytes": -1},
}


@pytest.fixture
async def stack(make_stub_stack: Callable[..., Tpuctl]) -> Tpuctl:
    """A stack whose bucket has a good job and each damaged one; it has no machines."""
    stack = make_stub_stack()
    client = stack.cloud.client("storage")
    await stack.cloud.call("bucket", client.create_bucket, stack.stack.bucket)

    async def put(name: str, fields: dict[str, object], change: object) -> None:
        data = change if isinstance(change, bytes) else json.dumps({**fields, **change}).encode()  # type: ignore[dict-item]
        await stack.store.put_bytes(name, data)

    for kind in (*DAMAGED_JOBS, *DAMAGED_WORKERS, "good"):  # the latest is good
        record = job(stack, GOOD if kind == "good" else f"20260304-000000-{kind}")
        fields = record.model_dump(mode="json")
        await put(record.object_name, fields, DAMAGED_JOBS.get(kind, {}))
        await put(record.record_name(0), worker(record), DAMAGED_WORKERS.get(kind, {}))
    return stack


async def test_damaged_records_are_one_line_each(stack: Tpuctl) -> None:
    folder = stack.stack_file.parent
    listed = run_tpuctl("jobs", "--json", folder=folder)
    answer = json.loads(listed.stdout)
    assert listed.returncode == 0, listed.stderr
    assert [entry["id"] for entry in answer["data"]] == [GOOD]
    details = [diagnostic["detail"].partition(": ")[0] for diagnostic in answer["diagnostics"]]
    names = [f"20260304-000000-{kind}" for kind in (*DAMAGED_JOBS, *DAMAGED_WORKERS)]
    assert all(any(name in detail for detail in details) for name in names), details
    assert len(details) == len(names)
    watch = JobWatch(stack.store)
    assert [snapshot.record.id for snapshot in await watch.poll()] == [GOOD]
    assert watch.problem is not None
    assert "20260304-000000-" in watch.problem.detail
    for kind in ("nested", "time", "attempt"):
        for command, *options in READERS:
            done = run_tpuctl(command, f"20260304-000000-{kind}", *options, folder=folder)
            assert done.returncode != 70, (command, done.stderr)
            reads_worker = command in ("explain", "wait", "report") or kind != "attempt"
            if reads_worker:
                assert done.returncode != 0, (command, kind)
                assert f"20260304-000000-{kind}/" in done.stderr, (command, done.stderr)
