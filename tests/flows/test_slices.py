"""Jobs on a slice's four workers: all of them start or none, and a failure has one cause."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.job_following import follow
from tests.support.polling import async_until
from tests.support.stack_jobs import displayed_log, write_script
from tpuctl.api import Tpuctl
from tpuctl.jobs import launch
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.model.events import Event, WarningIssued
from tpuctl.model.jobs.job import JobRecord
from tpuctl.remote.ssh import SshTransport

MakeStack = Callable[..., Tpuctl]
WORKERS = (0, 1, 2, 3)
ENDLESS = "import time\nprint('began', flush=True)\ntime.sleep(600)\n"
# Kills a job's processes on a machine, so that nothing records its end.
KILL = """
import os, sys
job, wanted = sys.argv[1:]
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        line = open(f"/proc/{pid}/cmdline", "rb").read().decode()
        around = open(f"/proc/{pid}/environ", "rb").read().decode()
    except OSError:
        continue
    if int(pid) != os.getpid() and job in line + around and (wanted == "all" or wanted in line):
        os.kill(int(pid), 9)
"""


@dataclass
class Slice:
    stack: Tpuctl
    transports: Mapping[int, SshTransport]
    events: list[Event]

    def script(self, text: str) -> Path:
        return write_script(self.stack, text)

    async def start(self, text: str) -> JobRecord:
        self.events.clear()
        return await self.stack.submit(self.script(text), check=False)

    async def follow(self, record: JobRecord, *, is_connected: bool = True) -> int:
        transports = self.transports if is_connected else {}
        work = follow(
            record,
            self.stack.store,
            transports,
            self.events.append,
            shown_workers=WORKERS,
            timeout=3,
        )
        return await asyncio.wait_for(work, 120)

    def log(self, worker: int) -> str:
        return displayed_log(self.events, worker)

    async def wait_for_start(self) -> None:
        await async_until(
            lambda: all("began" in self.log(worker) for worker in WORKERS),
            "the start of all workers",
        )

    def error_detail(self) -> str:
        (diagnostic,) = [
            event.diagnostic for event in self.events if isinstance(event, WarningIssued)
        ]
        return diagnostic.detail

    async def run_on(self, worker: int, *argv: str) -> bytes:
        done = await self.transports[worker].run(argv)
        return done.check(f"worker {worker}: {argv[0]}").stdout

    async def read_file(self, worker: int, record: JobRecord, name: str) -> bytes:
        """A file in the attempt's folder; empty if missing."""
        return (await self.transports[worker].run(["cat", f"{record.folder}/{name}"])).stdout


@pytest.fixture
async def slice_up(make_stack: MakeStack, events: list[Event]) -> AsyncIterator[Slice]:
    stack = make_stack(type_name="v3-32", zone="europe-west4-a")
    await stack.up()
    async with AsyncExitStack() as exits:
        transports = await stack.transports()
        for transport in transports.values():
            exits.push_async_callback(transport.close)
        yield Slice(stack, transports, events)
    await stack.down(delete_bucket=True)


@pytest.mark.soak
async def test_all_workers_start_or_none(slice_up: Slice, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = slice_up
    # No client is connected when the last worker is ready: worker 0 signals through the bucket.
    monkeypatch.setattr(launch, "READY_SECONDS", 0.0)
    monkeypatch.setattr(launch, "are_ready", lambda record, records: False)
    record = await workers.start("print('began')\n")
    assert await workers.follow(record, is_connected=False) == 0
    assert [workers.log(worker) for worker in WORKERS] == ["began\n"] * 4
    assert json.loads(await workers.read_file(0, record, "start")) == {"by": 0}
    monkeypatch.undo()
    # A client is connected: it signals the start over SSH before the job is followed.
    record = await workers.start("print('began')\n")
    assert await workers.read_file(0, record, "start") == b""
    assert await workers.run_on(0, "ls", f"{record.folder}/start")
    assert await workers.stack.wait_until_running(record) is None
    assert await workers.follow(record) == 0
    # One worker cannot be prepared: no worker starts.
    await workers.run_on(2, "sh", "-c", "mv .tpuctl/bundles .tpuctl/kept; touch .tpuctl/bundles")
    record = await workers.start("print('began again')\n")
    assert await asyncio.wait_for(workers.stack.wait_until_running(record), 60) == 1
    assert "worker 2: " in workers.error_detail()
    for worker in (0, 1, 3):
        assert await workers.read_file(worker, record, "log") == b""
        here = await workers.run_on(worker, "ls", record.folder)
        assert b"start" not in here.split()
        ended = json.loads(await workers.read_file(worker, record, "record.json"))
        assert (ended["cause"], ended["detail"]) == ("worker", "worker 2 ended first")


@pytest.mark.soak
@pytest.mark.parametrize("without_client", [False, True])
async def test_dead_worker_ends_job_and_is_named(
    slice_up: Slice, local_cloud: LocalCloud, without_client: bool
) -> None:
    """The job's parent, all its processes, or the machine is killed, with and without a client."""
    if not local_cloud.runs_startup_scripts:
        pytest.skip(f"would kill processes of other machines: {local_cloud.isolation}")
    workers = slice_up
    for worker, killed in ((1, "job_parent.py"), (2, "all"))[: 2 if without_client else 1]:
        record = await workers.start(ENDLESS)
        following = asyncio.ensure_future(workers.follow(record))
        await workers.wait_for_start()
        if without_client:
            following.cancel()
            await asyncio.wait([following])
        await workers.run_on(worker, "python3", "-c", KILL, record.id, killed)
        if without_client:
            if killed == "all":  # not detected until a client queries that machine
                await workers.run_on(worker, *launch.supervisor_command(record, "status"))
            workers.events.clear()
            following = asyncio.ensure_future(workers.follow(record, is_connected=False))
        assert await asyncio.wait_for(following, 90) == 69
        expected = f"{record.id}: worker {worker}: the job's processes are gone"
        assert workers.error_detail().startswith(expected)
    if not without_client:
        record = await workers.start(ENDLESS)
        following = asyncio.ensure_future(workers.follow(record))
        await workers.wait_for_start()
        node = (await workers.stack.node()).name
        fields = {"node": node, "worker": 3, "mode": "refused"}
        fault = await asyncio.to_thread(
            remote_control.add_fault, local_cloud, "host-unreachable", **fields
        )
        assert await asyncio.wait_for(following, 90) == 69
        assert "worker 3 is gone" in workers.error_detail()
        await asyncio.to_thread(remote_control.remove_fault, local_cloud, fault["id"])
