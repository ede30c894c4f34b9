"""Nodes created through queued resources, on the local cloud with the official clients."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.forked_cli import forked_tpuctl
from tests.support.locations import PROJECT, US_ZONE
from tests.support.polling import async_until
from tests.support.projects import provision
from tests.support.queued import (
    FLEX_START,
    OTHER,
    call,
    in_background,
    nodes_of,
    request_of,
    with_queue,
)
from tests.support.stack_jobs import displayed_log
from tpuctl.api import Tpuctl
from tpuctl.errors import Conflict, Denied, NoCapacity, OperationFailed, TpuctlError
from tpuctl.local_cloud import remote_control, server_process
from tpuctl.model.events import Event, StepProgress
from tpuctl.model.plan import Action

pytestmark = pytest.mark.long

MakeStack = Callable[..., Tpuctl]


@pytest.fixture
def faults(null_cloud: server_process.LocalCloud) -> Iterator[Callable[..., str]]:
    """Adds a fault until the test ends; returns its id."""

    def add(kind: str, **fields: Any) -> str:
        return str(remote_control.add_fault(null_cloud, kind, **fields)["id"])

    yield add
    remote_control.remove_all_faults(null_cloud)


@pytest.fixture
def make_queued(make_stub_stack: MakeStack) -> MakeStack:
    return with_queue(make_stub_stack)


@pytest.fixture
def make_with_machines(make_stack: MakeStack) -> MakeStack:
    return with_queue(make_stack)


async def wait_for_progress(events: list[Event], text: str) -> None:
    def is_reported() -> bool:
        return any(isinstance(event, StepProgress) and text in event.text for event in events)

    await async_until(is_reported, f"{text!r} being reported")


def background_up(stack: Tpuctl) -> AbstractAsyncContextManager[asyncio.Task[Any]]:
    """Run `up` in the background; cancel it at the end of the block."""
    return in_background(provision(stack))


async def test_request_created_between_queries_is_found(
    make_queued: MakeStack,
    faults: Callable[..., str],
    null_cloud: server_process.LocalCloud,
    events: list[Event],
) -> None:
    """Another `up` creates the request after the query for it, and before that for its nodes."""
    stack = make_queued()
    fault_id = faults("hold", method="GetQueuedResource", hold_response=True)
    planning = asyncio.create_task(
        Tpuctl(stack.stack_file, cloud="local", emit=events.append).plan()
    )
    await asyncio.to_thread(remote_control.wait_held, null_cloud, fault_id, 30)
    await provision(stack)
    remote_control.release(null_cloud, fault_id)
    change = (await planning).plan.change(f"queued/{stack.stack.names.queued}")
    assert change.action is Action.NOTHING


async def test_up_creates_queued_resource_and_down_deletes_it(
    make_with_machines: MakeStack,
) -> None:
    stack = make_with_machines()
    prepared = await stack.up()
    assert prepared.plan.change(f"queued/{stack.stack.names.queued}").action is Action.CREATE
    request = await request_of(stack)
    assert request.state.state.name == "ACTIVE"
    (node,) = await nodes_of(stack)
    assert node.state.name == "READY"
    assert node.queued_resource.rpartition("/")[2] == stack.stack.names.queued
    assert (await stack.up()).plan.is_empty
    assert (await stack.down(delete_bucket=True)).leaks == ()
    assert await request_of(stack) is None
    assert await nodes_of(stack) == []


async def test_up_resumes_waiting_for_interrupted_request(
    make_queued: MakeStack,
    faults: Callable[..., str],
    null_cloud: server_process.LocalCloud,
    events: list[Event],
) -> None:
    stack = make_queued()
    fault = faults("stockout", zone=US_ZONE, times="unlimited")
    async with background_up(stack):
        await wait_for_progress(events, "WAITING_FOR_RESOURCES")
        request = await request_of(stack)
    assert request.state.state.name == "WAITING_FOR_RESOURCES"

    again = make_queued(name=stack.stack.name)
    planned = await again.plan()
    change = planned.plan.change(f"queued/{stack.stack.names.queued}")
    assert (change.action, change.fields) == (Action.UPDATE, ("readiness",))
    assert "WAITING_FOR_RESOURCES" in change.because
    events.clear()
    async with background_up(again) as task:
        await wait_for_progress(events, "WAITING_FOR_RESOURCES")
        remote_control.remove_fault(null_cloud, fault)
        await task
    request_again = await request_of(again)
    assert (request_again.state.state.name, request_again.create_time) == (
        "ACTIVE",
        request.create_time,
    )
    assert (await again.plan()).plan.is_empty
    await again.down(delete_bucket=True)


async def test_ctrl_c_explains_how_to_resume_and_cancel(
    make_queued: MakeStack, faults: Callable[..., str]
) -> None:
    stack = make_queued()
    faults("stockout", zone=US_ZONE, times="unlimited")
    process = await asyncio.create_subprocess_exec(
        *(forked_tpuctl(), "up", "--yes"),
        cwd=stack.stack_file.parent,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    async with asyncio.timeout(60):
        stderr = ""
        while "WAITING_FOR_RESOURCES" not in stderr:
            stderr = (await process.stderr.readline()).decode()
            assert stderr, "the command exited"
        process.send_signal(signal.SIGINT)
        rest = (await process.stderr.read()).decode()
        assert await process.wait() == 130
    assert f"interrupted queued/{stack.stack.names.queued}" in rest
    assert "queued resource requests stay in the queue" in rest
    assert "Repeat the command" in rest
    assert "tpuctl down" in rest
    assert (await request_of(stack)).state.state.name == "WAITING_FOR_RESOURCES"
    assert (await stack.down(delete_bucket=True)).leaks == ()
    assert await request_of(stack) is None


async def test_down_deletes_request_that_up_waits_for(
    make_queued: MakeStack, faults: Callable[..., str], events: list[Event]
) -> None:
    stack = make_queued()
    faults("stockout", zone=US_ZONE, times="unlimited")
    async with background_up(stack) as task:
        await wait_for_progress(events, "WAITING_FOR_RESOURCES")
        other = make_queued(name=stack.stack.name)
        assert (await other.down(delete_bucket=True)).leaks == ()
        with pytest.raises(Conflict, match=r"took stack .* down"):
            await task
    assert await request_of(stack) is None


@pytest.mark.parametrize("is_timestamp", [False, True])
async def test_valid_until_ends_waiting(
    make_queued: MakeStack, faults: Callable[..., str], is_timestamp: bool
) -> None:
    """A timestamp applies to all zones; a duration starts again in the next zone."""
    faults("stockout", zone="us-central1-*", times="unlimited")
    soon = datetime.now(UTC) + timedelta(seconds=5)
    until = f"'{soon.isoformat()}'" if is_timestamp else "1s"
    stack = make_queued(queue=f"{{valid_until: {until}}}", zone=f"{US_ZONE}, {OTHER}")
    with pytest.raises(NoCapacity) as caught:
        await provision(stack)
    assert caught.value.exit_code == 75
    assert "(tpu.queue.valid_until)" in str(caught.value)
    assert "valid_until" in caught.value.diagnostics[0].hint
    assert (OTHER in str(caught.value)) == (not is_timestamp)
    for zone in (US_ZONE, OTHER):
        assert await request_of(stack, zone) is None
    await stack.down(delete_bucket=True)


async def test_request_stuck_in_provisioning_is_given_up(
    make_queued: MakeStack, faults: Callable[..., str], null_cloud: server_process.LocalCloud
) -> None:
    fault = faults("stuck-provisioning", zone=US_ZONE)
    stack = make_queued(queue="{provisioning_timeout: 1s}")
    with pytest.raises(NoCapacity, match="stuck in PROVISIONING") as caught:
        await provision(stack)
    assert caught.value.exit_code == 75
    assert f"{US_ZONE} did not create the nodes within 1s" in str(caught.value)
    assert "provisioning_timeout" in caught.value.diagnostics[0].hint
    assert remote_control.fault(null_cloud, fault)["applied"] == 1
    assert await request_of(stack) is None
    assert await nodes_of(stack) == []
    await stack.down(delete_bucket=True)


async def test_request_that_google_gives_up_continues_in_next_zone(
    make_queued: MakeStack, faults: Callable[..., str]
) -> None:
    """PROVISIONING, SUSPENDING by SERVICE, FAILED with code 13: large spot slices end so."""
    faults("provisioning-failure", zone=US_ZONE)
    stack = make_queued(zone=f"{US_ZONE}, {OTHER}")
    assert (await provision(stack)).stack.zone == OTHER
    assert await request_of(stack, US_ZONE) is None
    await stack.down(delete_bucket=True)

    faults("provisioning-failure", zone=US_ZONE)
    stack = make_queued()
    with pytest.raises(NoCapacity, match="Nodes could not be provisioned") as caught:
        await provision(stack)
    assert caught.value.exit_code == 75
    assert await request_of(stack) is None
    await stack.down(delete_bucket=True)


async def test_stuck_request_of_earlier_up_is_given_up_for_next_zone(
    make_queued: MakeStack, faults: Callable[..., str], events: list[Event]
) -> None:
    faults("stuck-provisioning", zone=US_ZONE)
    zones = f"{US_ZONE}, {OTHER}"
    stack = make_queued(zone=zones)
    async with background_up(stack):  # waits for an hour
        await wait_for_progress(events, "PROVISIONING")
    assert (await request_of(stack, US_ZONE)).state.state.name == "PROVISIONING"

    impatient = make_queued(name=stack.stack.name, zone=zones, queue="{provisioning_timeout: 1s}")
    assert (await provision(impatient)).stack.zone == OTHER
    assert await request_of(stack, US_ZONE) is None
    assert [node.name.split("/")[3] for node in await nodes_of(stack)] == [OTHER]
    assert (await impatient.down(delete_bucket=True)).leaks == ()


@pytest.mark.soak
async def test_multi_node_request_runs_one_job(
    make_with_machines: MakeStack, tmp_path: Path, events: list[Event]
) -> None:
    stack = make_with_machines(queue="{nodes: 2}", type_name="v2-32", zone="europe-west4-a")
    name = stack.stack.names.node
    await stack.up()
    nodes = await nodes_of(stack)
    assert [node.name.rpartition("/")[2] for node in nodes] == [f"{name}-0", f"{name}-1"]
    assert {node.state.name for node in nodes} == {"READY"}
    assert (await stack.up()).plan.is_empty

    script = tmp_path / "job" / "job.py"
    script.parent.mkdir()
    script.write_text(
        "import os\nprint(*(os.environ[one] for one in "
        "('TPUCTL_WORKER', 'TPUCTL_WORKERS', 'TPU_NAME')))\n"
    )
    record = await stack.submit(script)
    assert await stack.follow(record, all_workers=True) == 0
    logs = displayed_log(events)
    lines = sorted(line.split()[-3:] for line in logs.splitlines())
    assert lines == [[str(n), "8", f"{name}-{n // 4}"] for n in range(8)]

    assert (await stack.down(delete_bucket=True)).leaks == ()
    assert await nodes_of(stack) == []


async def test_job_starts_on_all_single_worker_nodes(
    make_with_machines: MakeStack, tmp_path: Path, events: list[Event]
) -> None:
    stack = make_with_machines(queue="{nodes: 2}")
    await stack.up()
    script = tmp_path / "job" / "job.py"
    script.parent.mkdir()
    script.write_text("import os\nprint(os.environ['TPUCTL_WORKER'], os.environ['TPU_NAME'])\n")
    assert await stack.follow(await stack.submit(script), all_workers=True) == 0
    logs = displayed_log(events)
    lines = sorted(line.split()[-2:] for line in logs.splitlines())
    assert lines == [["0", "local"], ["1", "local"]], "each node is a separate TPU VM"
    await stack.down(delete_bucket=True)


async def test_failed_request_is_deleted_before_next_zone(
    make_queued: MakeStack, faults: Callable[..., str]
) -> None:
    faults("queue-failure", zone=US_ZONE)
    stack = make_queued(zone=f"{US_ZONE}, {OTHER}")
    prepared = await provision(stack)
    assert prepared.stack.zone == OTHER
    assert await request_of(stack, US_ZONE) is None
    assert (await request_of(stack, OTHER)).state.state.name == "ACTIVE"
    await stack.down(delete_bucket=True)


@pytest.mark.parametrize(
    ("fields", "expected", "words"),
    [
        ({}, OperationFailed, "The queued resource failed"),
        (
            {"code": "RESOURCE_EXHAUSTED", "text": "There is no more capacity in the zone"},
            NoCapacity,
            "no more capacity",
        ),
        ({"code": "PERMISSION_DENIED", "text": "not for you"}, Denied, "not for you"),
        ({"text": "an internal error has occurred"}, NoCapacity, "could not be provisioned"),
    ],
)
async def test_failed_request_is_reported_and_deleted(
    make_queued: MakeStack,
    faults: Callable[..., str],
    fields: dict[str, str],
    expected: type[TpuctlError],
    words: str,
) -> None:
    faults("queue-failure", zone=US_ZONE, **fields)
    stack = make_queued()
    with pytest.raises(expected, match=words):
        await provision(stack)
    assert await request_of(stack) is None
    await provision(stack)  # the fault applied only once
    assert (await request_of(stack)).state.state.name == "ACTIVE"
    await stack.down(delete_bucket=True)


async def test_up_recreates_suspended_request(
    make_queued: MakeStack, faults: Callable[..., str]
) -> None:
    stack = make_queued(tpu="capacity: spot")
    await provision(stack)
    before = await request_of(stack)
    assert "spot" in before
    faults("preempt", node=stack.stack.names.node)

    async def is_suspended() -> bool:
        return bool((await request_of(stack)).state.state.name == "SUSPENDED")

    await async_until(is_suspended, "the request being suspended")
    prepared = await provision(stack)
    assert "SUSPENDED" in prepared.plan.change(f"queued/{stack.stack.names.queued}").because
    request = await request_of(stack)
    assert request.state.state.name == "ACTIVE"
    assert request.create_time > before.create_time
    assert [node.state.name for node in await nodes_of(stack)] == ["READY"]
    await stack.down(delete_bucket=True)


@pytest.mark.parametrize("options", [{}, FLEX_START])
async def test_lost_response_creates_no_second_request(
    make_queued: MakeStack,
    faults: Callable[..., str],
    null_cloud: server_process.LocalCloud,
    options: dict[str, Any],
) -> None:
    fault = faults("drop-response", method="CreateQueuedResource")
    stack = make_queued(**options)
    await provision(stack)
    assert remote_control.fault(null_cloud, fault)["applied"] == 1
    parent = f"projects/{PROJECT}/locations/-"
    requests = [
        request
        for request in await call(stack, "list_queued_resources", {"parent": parent})
        if request.name.endswith(stack.stack.names.queued)
    ]
    assert [request.state.state.name for request in requests] == ["ACTIVE"]
    assert (await stack.plan()).plan.is_empty
    await stack.down(delete_bucket=True)


@pytest.mark.soak
async def test_waiting_survives_unavailable_cloud(
    make_queued: MakeStack,
    faults: Callable[..., str],
    null_cloud: server_process.LocalCloud,
    events: list[Event],
) -> None:
    stack = make_queued()
    stockout = faults("stockout", zone=US_ZONE, times="unlimited")
    async with background_up(stack) as task:
        await wait_for_progress(events, "WAITING_FOR_RESOURCES")
        fault = faults("unavailable", method="GetQueuedResource", times=5)  # all retries of a call
        await wait_for_progress(events, "the cloud does not respond")
        assert remote_control.fault(null_cloud, fault)["applied"] == 5
        remote_control.remove_fault(null_cloud, stockout)
        await task
    assert (await request_of(stack)).state.state.name == "ACTIVE"
    await stack.down(delete_bucket=True)


async def test_concurrent_requests_by_two_users(make_queued: MakeStack) -> None:
    first = make_queued()
    other = make_queued(name=first.stack.name)
    await asyncio.gather(provision(first), provision(other))
    assert (await request_of(first)).state.state.name == "ACTIVE"
    assert len(await nodes_of(first)) == 1
    assert (await first.plan()).plan.is_empty
    assert (await first.down(delete_bucket=True)).leaks == ()


async def test_existing_node_conflicts_with_queued_resource(
    make_queued: MakeStack, make_stub_stack: MakeStack
) -> None:
    before = make_stub_stack(zone=US_ZONE)
    await provision(before)
    stack = make_queued(name=before.stack.name)
    with pytest.raises(Conflict, match="does not belong to queued resource"):
        await provision(stack)
    assert [node.state.name for node in await nodes_of(stack)] == ["READY"]
    assert (await stack.down(delete_bucket=True)).leaks == ()
    assert await nodes_of(stack) == []
