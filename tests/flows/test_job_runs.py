"""Jobs on machines of the local cloud: submit, follow, stop, load."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.job_following import follow
from tests.support.polling import async_until
from tpuctl.api import Tpuctl
from tpuctl.cloud.objects import ObjectStore
from tpuctl.errors import NotFound, RemoteFailed
from tpuctl.flows.jobs.follow import stop
from tpuctl.flows.jobs.job_start import submit
from tpuctl.flows.jobs.jobs import latest_job, list_jobs, load_job, read_status
from tpuctl.flows.jobs.submission import Submission
from tpuctl.flows.reports.status import JobWatch
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.model.events import Event, LogChunk, Note, StepFinished, WarningIssued
from tpuctl.model.jobs.job import JobRecord, WorkerRecord
from tpuctl.model.text.names import JOBS
from tpuctl.remote.transport import Transport

pytestmark = pytest.mark.long

MakeStack = Callable[..., Tpuctl]
UPLOAD = {"method": "*objects.insert*"}


@dataclass
class Bench:
    """A running stack, with the arguments that flows take."""

    stack: Tpuctl
    store: ObjectStore
    transports: Mapping[int, Transport]
    folder: Path
    events: list[Event]

    def submission(self, script: str, *args: str, **more: Any) -> Submission:
        (self.folder / "job.py").write_text(script)
        planned = Submission.of(self.stack.stack, self.folder / "job.py", args, cloud="local")
        return replace(planned, **more)

    async def submit(self, script: str, *args: str, **more: Any) -> JobRecord:
        planned = self.submission(script, *args, **more)
        return await submit(planned, self.store, self.transports, self.events.append)

    async def follow(self, record: JobRecord, **more: Any) -> int:
        more = {"transports": self.transports, **more}
        work = follow(record, self.store, emit=self.events.append, **more)
        return await asyncio.wait_for(work, 120)

    def log(self, worker: int = 0) -> bytes:
        """The emitted log of a worker; checks that chunks are contiguous."""
        log = b""
        for event in self.events:
            if isinstance(event, LogChunk) and event.worker == worker:
                assert event.offset == len(log)
                log += event.data
        return log

    async def in_bucket(self, name: str) -> bytes:
        return await self.store.get_bytes(name)


@asynccontextmanager
async def bench_on(stack: Tpuctl, folder: Path, events: list[Event]) -> AsyncIterator[Bench]:
    folder.mkdir()
    store = ObjectStore(stack.cloud.client("storage"), stack.stack.bucket)
    transports = await stack.transports()
    events.clear()
    try:
        yield Bench(stack, store, transports, folder, events)
    finally:
        await asyncio.gather(*(transport.close() for transport in transports.values()))


@pytest.fixture(scope="module")
def running() -> set[str]:
    """The names of the stacks that are up until the local cloud stops, shared by tests."""
    return set()


@pytest.fixture
async def bench(
    make_stack: MakeStack, running: set[str], tmp_path: Path, events: list[Event]
) -> AsyncIterator[Bench]:
    """A stack that other tests have run jobs on."""
    stack = await ensure_up(make_stack(name="jobs"), running)
    async with bench_on(stack, tmp_path / "job", events) as bench:
        yield bench


@pytest.fixture
async def slice_bench(
    make_stack: MakeStack, running: set[str], tmp_path: Path, events: list[Event]
) -> AsyncIterator[Bench]:
    """The same, a slice with four workers."""
    stack = make_stack(name="slice-jobs", type_name="v3-32", zone="europe-west4-a")
    async with bench_on(await ensure_up(stack, running), tmp_path / "job", events) as bench:
        yield bench


async def ensure_up(stack: Tpuctl, running: set[str]) -> Tpuctl:
    if stack.stack.name not in running:
        await stack.up()
        running.add(stack.stack.name)
    return stack


@pytest.fixture
async def new_bench(
    make_stack: MakeStack, tmp_path: Path, events: list[Event]
) -> AsyncIterator[Bench]:
    """A stack of the test's own."""
    stack = make_stack()
    await stack.up()
    async with bench_on(stack, tmp_path / "job", events) as bench:
        yield bench
    await stack.down(delete_bucket=True)


async def test_job_writes_log_and_records_to_bucket(bench: Bench) -> None:
    (bench.folder / "greeting.txt").write_text("안녕\n")
    record = await bench.submit(
        "import sys; print(open('greeting.txt').read(), sys.argv[1:])", "--steps", "3"
    )
    assert await bench.follow(record) == 0
    assert bench.log().decode() == "안녕\n ['--steps', '3']\n"
    assert await bench.in_bucket(record.log_name(0)) == bench.log()
    ended = WorkerRecord.model_validate_json(await bench.in_bucket(record.record_name(0)))
    assert (ended.state, ended.exit_code, ended.log_bytes) == ("succeeded", 0, len(bench.log()))
    assert JobRecord.model_validate_json(await bench.in_bucket(record.object_name)) == record
    steps = [event.address for event in bench.events if isinstance(event, StepFinished)]
    assert steps == ["job/bundle", "job/upload", "job/start"]


async def test_script_gets_environment_variables(bench: Bench) -> None:
    record = await bench.submit(
        "import json, os; print(json.dumps(dict(os.environ)))", env={"TOKEN": "hush", "A": "1"}
    )
    await bench.follow(record)
    variables = json.loads(bench.log())
    expected = {
        "TPUCTL_JOB": record.id,
        "TPUCTL_ATTEMPT": "1",
        "TPUCTL_WORKER": "0",
        "TPUCTL_WORKERS": "1",
        "TPUCTL_BUCKET": record.bucket,
        "TPUCTL_OUTPUT": f"gs://{record.bucket}/tpuctl/jobs/{record.id}/output",
        "TPUCTL_CLOUD": "local",
        "TPU_NAME": "local",
        "TPU_ZONE": "us-central1-b",
        "TPU_PROJECT": "local-project",
        "PYTHONUNBUFFERED": "1",
        "TOKEN": "hush",
        "A": "1",
    }
    assert {name: variables.get(name) for name in expected} == expected
    assert record.env == ("A", "TOKEN")
    for entry in await bench.store.list("tpuctl/"):
        if entry.name.endswith(".json"):
            assert b"hush" not in await bench.in_bucket(entry.name)


async def test_follow_returns_exit_code_of_job(bench: Bench) -> None:
    record = await bench.submit("raise SystemExit(42)")
    assert await bench.follow(record) == 42
    diagnostics = [event.diagnostic for event in bench.events if isinstance(event, WarningIssued)]
    assert [diagnostic.summary for diagnostic in diagnostics] == ["Job failed"]
    assert "exit code 42" in diagnostics[0].detail
    assert (await read_status(bench.store, record)).exit_code == 42


async def test_unchanged_bundle_is_not_uploaded_again(bench: Bench) -> None:
    first = await bench.submit("print(1)")
    second = await bench.submit("print(1)")
    uploads = [
        event.because
        for event in bench.events
        if isinstance(event, StepFinished) and event.address == "job/upload"
    ]
    bucket = f"gs://{bench.store.name}"
    assert uploads[0].endswith(f" kB to {bucket}")
    assert uploads[1:] == [f"already in {bucket}"]
    assert first.bundle == second.bundle
    assert await bench.follow(first) == await bench.follow(second) == 0


async def test_follow_resumes_at_offset(bench: Bench) -> None:
    record = await bench.submit(
        "import time\nfor number in range(60):\n    print('line', number)\n    time.sleep(0.02)"
    )
    for _ in range(3):
        task = asyncio.ensure_future(bench.follow(record, from_offsets={0: len(bench.log())}))
        before = len(bench.log())
        while len(bench.log()) == before and not task.done():
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
    assert await bench.follow(record, from_offsets={0: len(bench.log())}) == 0
    assert bench.log().decode() == "".join(f"line {number}\n" for number in range(60))


async def test_log_is_available_after_machine_is_gone(new_bench: Bench) -> None:
    record = await new_bench.submit("print('hello'); raise SystemExit(3)")
    await new_bench.follow(record)
    log = new_bench.log()
    new_bench.events.clear()
    await new_bench.stack.down()
    assert await new_bench.follow(record, transports={}) == 3
    assert new_bench.log() == log
    assert await load_job(new_bench.store, record.id) == record


async def test_follow_continues_from_bucket_when_machine_vanishes(new_bench: Bench) -> None:
    record = await new_bench.submit("import time\nprint('began')\ntime.sleep(600)")
    following = asyncio.ensure_future(new_bench.follow(record, is_gone=node_is_gone(new_bench)))
    await async_until(new_bench.log, "a log")
    await new_bench.stack.down()
    assert await following == 69
    assert new_bench.log() == b"began\n"


def node_is_gone(bench: Bench) -> Callable[[], Any]:
    async def is_gone() -> bool:
        try:
            await bench.stack.node()
        except NotFound:
            return True
        return False

    return is_gone


async def test_log_is_uploaded_while_job_runs(bench: Bench) -> None:
    record = await bench.submit("import time\nprint('began', flush=True)\ntime.sleep(600)")

    async def is_running() -> bool:  # the log is uploaded before the record
        has_log = await bench.store.exists(record.log_name(0))
        return has_log and (await read_status(bench.store, record)).state == "running"

    await async_until(is_running, "the record of the start")
    assert await bench.in_bucket(record.log_name(0)) == b"began\n"
    assert (await read_status(bench.store, record)).state == "running"
    ended = await stop(record, bench.store, bench.transports, bench.events.append, "me", grace=5)
    assert (ended.state, ended.exit_code) == ("stopped", 143)
    assert await bench.follow(record) == 143


@pytest.mark.soak
async def test_job_end_waits_for_slow_log_upload(new_bench: Bench, local_cloud: LocalCloud) -> None:
    record = await new_bench.submit("import time\ntime.sleep(3)\nprint('the end')")
    name = record.log_name(0)
    fault = remote_control.add_fault(local_cloud, "hold", **UPLOAD, name=name)
    following = asyncio.ensure_future(new_bench.follow(record))
    await async_until(
        lambda: remote_control.fault(local_cloud, fault["id"])["applied"], "the upload being held"
    )
    await asyncio.sleep(12)  # longer than the wait for an unavailable bucket
    assert not following.done()
    remote_control.release(local_cloud, fault["id"])
    assert await following == 0
    await new_bench.stack.down()
    assert await new_bench.in_bucket(name) == b"the end\n"


@pytest.mark.soak
async def test_job_end_does_not_wait_for_unavailable_bucket(
    bench: Bench, local_cloud: LocalCloud
) -> None:
    record = await bench.submit("import time\ntime.sleep(3)\nprint('the end')")
    fault = remote_control.add_fault(
        local_cloud, "unavailable", **UPLOAD, name=f"*{record.id}*", times="unlimited"
    )
    began = asyncio.get_running_loop().time()
    assert await bench.follow(record) == 0
    assert asyncio.get_running_loop().time() - began < 60
    notes = [event.text for event in bench.events if isinstance(event, Note)]
    assert notes == [
        "the end of worker 0's log is not in the bucket: it will be deleted with the machine"
    ]
    remote_control.remove_fault(local_cloud, fault["id"])
    assert await bench.follow(record) == 0  # waits for the next upload
    assert await bench.in_bucket(record.log_name(0)) == b"the end\n"


async def test_stop_returns_once_bucket_has_the_end(bench: Bench, local_cloud: LocalCloud) -> None:
    record = await bench.submit("import time\nprint('began', flush=True)\ntime.sleep(600)")
    await async_until(lambda: bench.store.exists(record.record_name(0)), "the record of the start")
    fault = remote_control.add_fault(
        local_cloud, "hold", **UPLOAD, name=record.record_name(0), times="unlimited"
    )
    stopping = asyncio.ensure_future(
        stop(record, bench.store, bench.transports, print, "me", grace=5)
    )
    await async_until(
        lambda: remote_control.fault(local_cloud, fault["id"])["applied"], "the upload being held"
    )
    await asyncio.sleep(2)
    assert not stopping.done()
    remote_control.remove_fault(local_cloud, fault["id"])
    assert (await stopping).state == "stopped"
    assert (await read_status(bench.store, record)).state == "stopped"


@pytest.mark.soak
async def test_stop_through_bucket_when_machines_are_unreachable(bench: Bench) -> None:
    record = await bench.submit("import time\nprint('began', flush=True)\ntime.sleep(600)")
    await stop(record, bench.store, {}, bench.events.append, "me")
    assert [event for event in bench.events if isinstance(event, Note)]
    assert await bench.follow(record) == 143


async def test_jobs_are_listed_and_loaded(new_bench: Bench) -> None:
    assert await latest_job(new_bench.store) is None
    assert await list_jobs(new_bench.store) == []
    first = await new_bench.submit("print(1)")
    await new_bench.follow(first)
    second = await new_bench.submit("raise SystemExit(2)")
    await new_bench.follow(second)
    assert [job.record for job in await list_jobs(new_bench.store)] == [second, first]
    codes = {job.record.id: job.status.exit_code for job in await list_jobs(new_bench.store)}
    assert codes == {first.id: 0, second.id: 2}
    assert await latest_job(new_bench.store) == second
    with pytest.raises(NotFound):
        await load_job(new_bench.store, "nothing")
    # Their order is that of the bucket's clock, whatever the clocks that named them showed.
    for job in ("20990101-000000-zinc", "20990101-000000-amber", "20160101-000000-acorn"):
        record = second.model_copy(
            update={"id": job, "submitted": datetime(2016, 1, 1, tzinfo=UTC)}
        )
        path = f"{JOBS}/{record.id}/job.json"
        await new_bench.store.put_bytes(path, record.model_dump_json().encode())
        assert (await latest_job(new_bench.store) or first).id == job
        assert (await list_jobs(new_bench.store))[0].record.id == job
        assert (await JobWatch(new_bench.store).poll())[-1].record.id == job


async def test_max_hours_stops_job(bench: Bench) -> None:
    record = await bench.submit("import time\ntime.sleep(600)", max_hours=2 / 3600)
    assert await bench.follow(record) == 124


async def test_job_does_not_start_if_one_worker_fails_to_start(slice_bench: Bench) -> None:
    bench = slice_bench
    # On worker 2 the jobs folder is a file, so nothing can be stored there.
    worker_2 = bench.transports[2]
    hidden = await worker_2.run(["sh", "-c", "mv .tpuctl .kept; touch .tpuctl"])
    hidden.check("putting a file in the way")
    try:
        with pytest.raises(RemoteFailed, match="worker 2"):
            await bench.submit("import time\nprint('began')\ntime.sleep(600)")
    finally:
        await worker_2.run(["sh", "-c", "rm .tpuctl; mv .kept .tpuctl"])
    for worker in (0, 1, 3):
        result = await bench.transports[worker].run(
            ["sh", "-c", "cat $(ls -t .tpuctl/jobs/*/1/record.json | head -n 1)"]
        )
        assert WorkerRecord.model_validate_json(result.stdout).state == "stopped"


async def test_first_failing_worker_stops_the_others(slice_bench: Bench) -> None:
    bench = slice_bench
    record = await bench.submit(
        "import os, sys, time\n"
        "worker = os.environ['TPUCTL_WORKER']\n"
        "print('worker', worker, 'of', os.environ['TPUCTL_WORKERS'])\n"
        "if worker == '2': time.sleep(2); sys.exit(9)\n"
        "time.sleep(600)\n"
    )
    assert record.workers == (0, 1, 2, 3)
    assert await bench.follow(record, shown_workers=record.workers) == 9
    for worker in record.workers:
        assert bench.log(worker).decode() == f"worker {worker} of 4\n"
    status = await read_status(bench.store, record)
    assert (status.worker, status.exit_code) == (2, 9)


@pytest.mark.soak
async def test_first_failing_worker_stops_the_others_without_client(
    slice_bench: Bench,
) -> None:
    bench = slice_bench
    record = await bench.submit(
        "import os, sys, time\n"
        "if os.environ['TPUCTL_WORKER'] == '1': sys.exit(5)\n"
        "time.sleep(600)\n"
    )
    assert await bench.follow(record, transports={}) == 5
