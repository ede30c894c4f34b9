"""Sweeps on several TPUs at once, which the stack's controller creates and deletes by need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.polling import async_until
from tests.support.stack_jobs import displayed_log, write_script
from tpuctl.api import Tpuctl
from tpuctl.errors import Usage
from tpuctl.flows.jobs.run_state import RunOptions
from tpuctl.flows.queue.queue import Queue
from tpuctl.flows.stack.plan import plan
from tpuctl.flows.stack.up import provision, up_without_tpu
from tpuctl.local_cloud import remote_control, server_process
from tpuctl.model.events import Event
from tpuctl.model.jobs.queue import Queued

MakeStack = Callable[..., Tpuctl]
pytestmark = [pytest.mark.usefixtures("startup_scripts"), pytest.mark.long]
# The first two jobs run until they are stopped, so that they have to run at the same time.
JOB = """
import os
import sys
import time
print("on", os.environ["TPU_NAME"], os.environ["TPUCTL_JOB"], flush=True)
while sys.argv[1] != "--lr=3":
    time.sleep(0.1)
"""


async def test_sweep_on_two_tpus(
    make_stack: MakeStack, local_cloud: server_process.LocalCloud, events: list[Event]
) -> None:
    stack = make_stack(
        runtime="v2-alpha-tpuv5-lite",
        zone="us-west4-a",
        type_name="v5litepod-1",
        extra="controller: {}\nlimits: {max_cost: 5}\n",
    )
    name = stack.stack.name
    submission = stack.submission(write_script(stack, JOB), check=False)
    options = RunOptions(up=True, each=[{"lr": "1"}, {"lr": "2"}, {"lr": "3"}])
    since = remote_control.calls(local_cloud)[-1]["number"]
    first, second, third = await stack.enqueue(submission, options, Queued(down=True, parallel=2))

    async def running() -> Any:
        jobs = [job.record for job in await stack.jobs() if job.status.state == "running"]
        return jobs if len(jobs) == 2 else None

    records = await async_until(running, "two jobs at once", 60)
    assert {record.id for record in records} == {first.id, second.id}
    assert {record.node for record in records} == {f"{name}-tpu", f"{name}-2-tpu"}
    status = await stack.status()
    assert {node.name for node in status.nodes} == {f"{name}-tpu", f"{name}-2-tpu"}

    async def counts_both() -> bool:
        ledger = await stack.store.get_bytes(f"tpuctl/spending/{name}.json")
        return f'"{name}-2"' in ledger.decode()

    await async_until(counts_both, "a ledger with both TPUs", 90)
    for record in records:
        assert (await stack.stop(record)).state == "stopped"
        await stack.log(record)
        assert f"on local {record.id}" in displayed_log(events)

    assert await stack.follow(await stack.job(third.id), show=False) == 0

    async def is_empty() -> bool | None:
        return not [item for item in (await stack.status()).inventory if item.kind != "bucket"]

    await async_until(is_empty, "the stack being taken down", 60)
    calls = remote_control.calls(local_cloud, since)
    assert len([call for call in calls if call["method"].endswith("/CreateNode")]) == 2
    assert (await stack.down(delete_bucket=True)).leaks == ()


async def test_down_and_status_include_further_tpus(make_stub_stack: MakeStack) -> None:
    """Also without a stack file."""
    stack = make_stub_stack(extra="controller: {}\n")
    name = stack.stack.name
    await up_without_tpu(stack.context)
    further = replace(stack.context, stack=stack.stack.parallel(2))
    await Queue(stack.store, name).enter(2)
    prepared = await plan(further)
    assert [change.address for change in prepared.plan] == [f"node/{name}-2-tpu"]
    await provision(further, prepared)
    (node,) = (await stack.status()).nodes
    assert node.name == f"{name}-2-tpu"
    named = Tpuctl(name=name, project="local-project", cloud="local")
    down = await named.down()
    assert f"node/us-central1-b/{name}-2-tpu" in [item.address for item in down.remaining]
    assert down.leaks == ()
    assert (await stack.status()).nodes == ()


@pytest.mark.parametrize(
    ("name", "extra", "detail"),
    [
        ("a" * 25, "", "of at most 26 characters"),
        ("", "tpu-disk", "tpu.data_disks"),
        ("taken", "", "taken-2: a further TPU of stack taken would have this name"),
    ],
)
async def test_stack_that_cannot_have_further_tpus(
    make_stub_stack: MakeStack, name: str, extra: str, detail: str
) -> None:
    """Refused before anything is created."""
    controller = "controller: {}\n"
    if name == "taken":
        await up_without_tpu(make_stub_stack(name="taken-2", extra=controller).context)
    disks = ", data_disks: [{size_gb: 10}]" if extra else ""
    stack = make_stub_stack(name=name, runtime=f"tpu-ubuntu2204-base{disks}", extra=controller)
    submission = stack.submission(write_script(stack, JOB), check=False)
    options = RunOptions(up=True, each=[{"lr": "1"}, {"lr": "2"}])
    with pytest.raises(Usage, match=detail):
        await stack.enqueue(submission, options, Queued(parallel=2))
    assert (await stack.status()).inventory == ()
