"""Jobs that a stack's controller runs from beginning to end, while the laptop is off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.polling import async_until
from tests.support.stack_jobs import write_script
from tpuctl.api import Tpuctl
from tpuctl.flows.jobs.run_state import RunOptions
from tpuctl.local_cloud import remote_control, server_process
from tpuctl.model.events import Event
from tpuctl.model.jobs.job import JobRecord
from tpuctl.model.jobs.queue import Queued

MakeStack = Callable[..., Tpuctl]
pytestmark = [pytest.mark.usefixtures("startup_scripts"), pytest.mark.long]
FIRST, OTHER = "us-west4-a", "us-west4-b"
JOB = """
import os
print(os.environ["TPUCTL_ATTEMPT"], os.environ["COLOR"], os.environ["TPU_ZONE"], flush=True)
"""


@pytest.fixture
def stack(make_stack: MakeStack) -> Tpuctl:
    """A stack with a controller and two zones."""
    return make_stack(
        runtime="v2-alpha-tpuv5-lite, capacity: spot",
        zone=f"{FIRST}, {OTHER}",
        type_name="v5litepod-1",
        extra="controller: {}\njob: {env: {COLOR: green}}\n",
    )


async def ended(stack: Tpuctl, record: JobRecord) -> Any:
    """Wait until the job has ended; its status."""

    async def probe() -> Any:
        (status,) = [job.status for job in await stack.jobs() if job.record.id == record.id]
        return status if status.exit_code is not None else None

    return await async_until(probe, "the end of the job", 45)


async def test_controller_runs_the_whole_story(
    stack: Tpuctl,
    local_cloud: server_process.LocalCloud,
    events: list[Event],
) -> None:
    """The laptop hands over and is off: the controller looks for capacity, in one zone and then in
    another, runs the job, and takes the stack down, itself included."""
    remote_control.add_fault(local_cloud, "stockout", zone=FIRST, type="v5*")
    submission = stack.submission(write_script(stack, JOB), check=False)
    since = remote_control.calls(local_cloud)[-1]["number"]
    (record,) = await stack.enqueue(submission, RunOptions(up=True), Queued(down=True))
    here = remote_control.calls(local_cloud, since)
    assert not [call for call in here if "CreateNode" in call["method"]]

    status = await ended(stack, record)
    assert (status.state, status.exit_code) == ("succeeded", 0)
    (job,) = await stack.jobs()
    log = await stack.store.get_bytes(job.record.log_name(0))
    assert log.decode().split() == ["1", "green", OTHER]
    makers = {
        call["caller"]
        for call in remote_control.calls(local_cloud, since)
        if call["method"].endswith(("/CreateNode", "/DeleteNode"))
    }
    assert makers == {stack.stack.service_account}

    async def is_empty() -> bool | None:
        return not [item for item in (await stack.status()).inventory if item.kind != "bucket"]

    await async_until(is_empty, "the stack being taken down")
    assert await stack.follow(record, show=False) == 0
    assert (await stack.down(delete_bucket=True)).leaks == ()


@pytest.mark.soak
async def test_controller_creates_the_tpu_alone(
    stack: Tpuctl, local_cloud: server_process.LocalCloud
) -> None:
    """`up --detach`: it goes on while no zone has capacity."""
    fault = remote_control.add_fault(local_cloud, "stockout", type="v5*", times="unlimited")
    since = remote_control.calls(local_cloud)[-1]["number"]
    await stack.hand_over_up()

    def creations() -> list[Any]:
        calls = remote_control.calls(local_cloud, since)
        return [call for call in calls if call["method"].endswith("/CreateNode")]

    async def has_failed() -> bool:
        return len(creations()) > 2  # two zones, more than once

    await async_until(has_failed, "tries in both zones")
    activity = (await anext(stack.watch(60.0))).activity
    assert activity is not None
    actor = f"tpuctl@{stack.stack.names.controller} as {stack.stack.service_account}"
    assert activity.by == actor
    remote_control.remove_fault(local_cloud, fault["id"])

    async def is_ready() -> bool:
        return [node.state for node in (await stack.status()).nodes] == ["READY"]

    await async_until(is_ready, "the TPU")
    assert {call["caller"] for call in creations()} == {stack.stack.service_account}
    assert (await stack.down(delete_bucket=True)).leaks == ()
