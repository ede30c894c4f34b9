"""Jobs whose node is preempted: recreated and resumed, each byte of each attempt's log once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from tests.support.polling import async_until
from tests.support.recovery_jobs import COUNTING, inject_fault, log_of, notes, script
from tpuctl.api import Tpuctl
from tpuctl.flows.jobs.attempts import read_attempts
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.model.events import Event, StepFinished, WarningIssued

MakeStack = Callable[..., Tpuctl]


@pytest.fixture
async def spot(make_stack: MakeStack, local_cloud: LocalCloud) -> AsyncIterator[Tpuctl]:
    stack = make_stack(runtime="tpu-ubuntu2204-base, capacity: spot")
    await stack.up()
    yield stack
    await asyncio.to_thread(remote_control.remove_all_faults, local_cloud)
    assert (await stack.down(delete_bucket=True)).leaks == ()


@pytest.mark.parametrize(
    "moment", [13, *(pytest.param(moment, marks=pytest.mark.soak) for moment in (0, 20))]
)
async def test_preempted_job_resumes_with_its_output(
    spot: Tpuctl, local_cloud: LocalCloud, events: list[Event], moment: int
) -> None:
    record = await spot.submit(script(spot, COUNTING), ["30", "0.05"])
    following = asyncio.ensure_future(spot.follow(record))
    await async_until(lambda: f"step {moment}\n" in log_of(events, 1), f"step {moment}")
    first = await spot.node()
    await inject_fault(local_cloud, "preempt", node=first.name)
    assert await asyncio.wait_for(following, 120) == 0
    again = await spot.node()
    assert again.id != first.id
    (attempt,) = await read_attempts(spot.store, record)
    assert (attempt.number, attempt.verdict.kind) == (2, "preemption")
    assert attempt.placement.node_ids == (again.id,)
    second = log_of(events, 2)
    head, *steps, last = second.splitlines()
    begun = int(head.removeprefix("attempt 2 from "))
    assert begun >= moment
    assert steps == [f"step {number}" for number in range(begun, 30)]
    assert last == "counted"
    assert (await spot.store.get_bytes(record.log_name(0))).decode() in log_of(events, 1)
    assert (await spot.store.get_bytes(record.at(2).log_name(0))).decode() == second
    assert "preemption 9" in notes(events)
    (summary,) = await spot.jobs()
    assert (summary.status.state, summary.record.attempt) == ("succeeded", 2)
    assert summary.retries_left == {
        "preemption": 9,
        "infrastructure": 3,
        "failure": 0,
        "requested": 10,
    }
    assert not [event for event in events if isinstance(event, WarningIssued) and event.is_error]


async def preempt_node(stack: Tpuctl, cloud: LocalCloud) -> None:
    """Preempt the stack's node and wait until it is reported."""
    node = await stack.node()
    await inject_fault(cloud, "preempt", node=node.name)
    async with asyncio.timeout(60):
        while (await stack.node()).state != "PREEMPTED":
            await asyncio.sleep(0.05)


ENDLESS = "import time\nprint('began', flush=True)\ntime.sleep(600)\n"


async def test_exhausted_retries_end_the_job(
    make_stack: MakeStack, local_cloud: LocalCloud, events: list[Event]
) -> None:
    spot = make_stack(
        runtime="tpu-ubuntu2204-base, capacity: preemptible",
        extra="job: {retries: {preemption: 1}}\n",
    )
    await spot.up()
    record = await spot.submit(script(spot, ENDLESS))
    following = asyncio.ensure_future(spot.follow(record))
    for attempt in (1, 2):
        await async_until(lambda attempt=attempt: "began" in log_of(events, attempt), "began")
        await inject_fault(local_cloud, "preempt", node=(await spot.node()).name)
    assert await asyncio.wait_for(following, 120) == 75
    diagnostics = [
        event.diagnostic for event in events if isinstance(event, WarningIssued) and event.is_error
    ]
    assert [diagnostic.summary for diagnostic in diagnostics] == ["Job was lost"]
    assert "No retries left (job.retries.preemption: 1)" in diagnostics[0].detail
    assert [attempt.number for attempt in await read_attempts(spot.store, record)] == [2]
    assert (await spot.node()).state == "PREEMPTED", "no node is created without a job to run"
    assert await spot.follow(await spot.job()) == 75, "following again returns the same code"
    assert (await spot.down(delete_bucket=True)).leaks == ()


@pytest.mark.soak
async def test_one_of_concurrent_clients_starts_each_attempt(
    spot: Tpuctl, local_cloud: LocalCloud, make_stack: MakeStack
) -> None:
    record = await spot.submit(script(spot, COUNTING), ["12", "0.05"])
    seen: list[list[Event]] = [[], []]
    both = []
    for number in (0, 1):
        other = Tpuctl(spot.stack_file, cloud="local", emit=seen[number].append)
        both.append(asyncio.ensure_future(other.follow(await other.job())))
    await async_until(lambda: all("step 2\n" in log_of(events, 1) for events in seen), "step 2")
    await inject_fault(local_cloud, "preempt", node=(await spot.node()).name)
    assert await asyncio.wait_for(asyncio.gather(*both), 120) == [0, 0]
    (attempt,) = await read_attempts(spot.store, record)
    assert attempt.number == 2
    assert log_of(seen[0], 2) == log_of(seen[1], 2)
    started = [
        sum("attempt 2" in event.because for event in events if isinstance(event, StepFinished))
        for events in seen
    ]
    assert sorted(started) == [0, 1]


async def test_stopped_job_is_not_recovered(
    spot: Tpuctl, local_cloud: LocalCloud, events: list[Event]
) -> None:
    record = await spot.submit(script(spot, ENDLESS))
    await preempt_node(spot, local_cloud)
    assert (await spot.stop(await spot.job())).state == "stopped"
    assert await asyncio.wait_for(spot.follow(await spot.job()), 60) == 143
    assert await read_attempts(spot.store, record) == []
    (summary,) = await spot.jobs()
    assert (summary.status.state, summary.status.exit_code) == ("stopped", 143)
    assert (await spot.node()).state == "PREEMPTED"


async def test_job_is_not_recovered_after_down(
    spot: Tpuctl, local_cloud: LocalCloud, events: list[Event]
) -> None:
    record = await spot.submit(script(spot, ENDLESS))
    following = asyncio.ensure_future(spot.follow(record))
    await async_until(lambda: "began" in log_of(events, 1), "began")
    other = Tpuctl(spot.stack_file, cloud="local")
    assert (await other.down()).leaks == ()
    await asyncio.wait_for(following, 120)
    assert await read_attempts(spot.store, record) == []
    assert not (await spot.status()).nodes
    assert "The stack was deleted" in str(events[-1])
    (summary,), moment = await spot.jobs(), await spot.snapshot()
    for status in (summary.status, moment.jobs[0].status):
        assert (status.state, status.exit_code, status.detail) == (
            "lost",
            69,
            "the stack was taken down",
        )
