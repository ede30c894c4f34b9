"""Connections that drop while machines are prepared and jobs started: nothing runs twice."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import pytest

from tests.support.job_following import follow
from tests.support.relay import Cut, Relay, cut_transport
from tpuctl.api import Tpuctl
from tpuctl.cloud.objects import ObjectStore
from tpuctl.flows.jobs.job_start import submit
from tpuctl.flows.jobs.submission import Submission
from tpuctl.flows.stack.up import prepare_workers
from tpuctl.jobs.launch import Launch, start
from tpuctl.local_cloud import remote_control, server_process
from tpuctl.model.events import Event, WarningIssued, ignore
from tpuctl.model.jobs.job import JobRecord, new_job_id
from tpuctl.remote.ssh import SshTransport

SCRIPT = """
import os
with open(os.path.expanduser("~/" + os.environ["RUNS"]), "a") as runs:
    runs.write("run ")
"""
_numbers = itertools.count(1)


class Bench:
    """A stack that is up, and a job whose bundle is in its bucket."""

    def __init__(self, stack: Tpuctl, direct: SshTransport, record: JobRecord) -> None:
        self.stack = stack
        self.direct = direct
        self.record = record

    async def start(self, *cuts: Cut) -> Relay:
        """Start the job again through connections with these cuts; it must run once."""
        at = datetime.now(UTC) + timedelta(seconds=next(_numbers))  # unique ids
        record = self.record.model_copy(update={"id": new_job_id(at, random.Random(1))})
        runs = f"runs-{record.id}"
        launch = Launch(env={"RUNS": runs})
        async with cut_transport(self.direct, self.stack.key.path, cuts) as (transport, relay):
            await start(record, launch, record.bundle_name, {0: transport})
        assert await follow(record, None, {0: self.direct}, ignore) == 0, cuts
        assert (await self.direct.run(["cat", runs])).stdout == b"run ", cuts
        listed = await self.direct.run(["ls", record.folder])
        assert b"new." not in listed.stdout, "no temporary file is left"
        return relay

    async def prepare(self, *cuts: Cut) -> Relay:
        """Run the last step of `up` through connections with these cuts."""
        async with cut_transport(self.direct, self.stack.key.path, cuts) as (transport, relay):
            await prepare_workers(self.stack.stack, self.stack.cloud, None, {0: transport}, ignore)
        return relay


@pytest.fixture
async def bench(make_stack: Callable[..., Tpuctl], tmp_path: Path) -> AsyncIterator[Bench]:
    stack = make_stack(extra="limits: {max_hours: 5}\n")
    await stack.up()
    script = tmp_path / "once.py"
    script.write_text(SCRIPT)
    transports = await stack.transports()
    store = ObjectStore(stack.cloud.client("storage"), stack.stack.bucket)
    submission = replace(Submission.of(stack.stack, script, cloud="local"), env={"RUNS": "runs"})
    record = await submit(submission, store, transports, ignore)
    yield Bench(stack, transports[0], record)
    await transports[0].close()
    await stack.down(delete_bucket=True)


Direction = Literal["request", "answer"]


DIRECTIONS: tuple[Direction, ...] = ("request", "answer")
CLOSING_BYTES = 400  # at the end of a connection: cutting those has no effect


def random_cuts(seed: int, whole: Relay, count: int) -> list[Cut]:
    """Random cuts within what an uncut connection transferred, in both directions."""
    choice = random.Random(seed)
    return [
        Cut(direction, choice.randrange(whole.passed[direction] - CLOSING_BYTES))
        for direction in (DIRECTIONS * count)[:count]
    ]


async def test_dropped_connection_does_not_start_job_twice(bench: Bench) -> None:
    whole = await bench.start()
    assert whole.connections == 1
    for cut in random_cuts(15, whole, 6):
        assert (await bench.start(cut)).connections == 2, cut


async def test_up_survives_dropped_connections(bench: Bench) -> None:
    whole = await bench.prepare()
    for cut in random_cuts(16, whole, 6):
        assert (await bench.prepare(cut)).connections == 2, cut


async def test_host_keys_are_polled_before_trust_on_first_use(
    bench: Bench, local_cloud: server_process.LocalCloud, events: list[Event]
) -> None:
    fault = await asyncio.to_thread(
        remote_control.add_fault,
        local_cloud,
        "error",
        method="GetGuestAttributes",
        code="INVALID_ARGUMENT",
        text="GuestAttributes value not found",
        times=2,
    )
    (transport,) = (await bench.stack.transports()).values()
    assert transport.address == bench.direct.address
    assert remote_control.fault(local_cloud, fault["id"])["applied"] == 2
    warnings = [event.diagnostic.summary for event in events if isinstance(event, WarningIssued)]
    assert "Host key trusted on first use" not in warnings


@pytest.mark.soak
async def test_connection_drops_after_every_read(bench: Bench) -> None:
    """Twice in a row. An incomplete packet counts for nothing; the cuts above are within some."""
    for work in (bench.start, bench.prepare):
        whole = await work()
        for direction in DIRECTIONS:
            last = whole.passed[direction] - CLOSING_BYTES
            for after in (0, *(end for end in whole.reads[direction] if end < last)):
                cut = Cut(direction, after)
                assert (await work(cut, cut)).connections == 3, cut
