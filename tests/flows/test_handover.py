"""Jobs watched only by the stack's controller, on the local cloud's real machines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.controllers import on_controller, read_work
from tests.support.polling import async_until
from tpuctl.api import Tpuctl
from tpuctl.cloud.operations import compute_operation
from tpuctl.flows.jobs.attempts import read_attempts
from tpuctl.local_cloud import remote_control, server_process
from tpuctl.model.events import Event, StepFinished, WarningIssued
from tpuctl.model.jobs.job import JobRecord
from tpuctl.polling import Backoff, wait_until

MakeStack = Callable[..., Tpuctl]
pytestmark = pytest.mark.usefixtures("startup_scripts")
TOKEN = "not-to-be-read-anywhere"
SECRET = "nor-is-this-one"
# The first attempt waits forever. Each prints the names of its secrets.
JOB = """
import os, pathlib, time
attempt = os.environ["TPUCTL_ATTEMPT"]
given = [name for name in ("TOKEN", "SECRET") if os.environ.get(name)]
print("attempt", attempt, *given, os.environ["TPUCTL_CLOUD"], flush=True)
while attempt == "1":
    time.sleep(0.1)
"""


@pytest.fixture
def watched(make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch) -> Tpuctl:
    """A stack whose controller's watchdog polls every few seconds."""
    monkeypatch.setenv("FROM_HERE", SECRET)
    return make_stack(
        runtime="tpu-ubuntu2204-base, capacity: spot",
        extra=f"controller: {{}}\nlimits: {{idle: 40s}}\n"
        f"job: {{env: {{TOKEN: {TOKEN}}}, secrets: {{SECRET: 'env:FROM_HERE'}}}}\n",
    )


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "job" / "job.py"
    path.parent.mkdir()
    path.write_text(JOB, "utf-8")
    return path


async def state_of(stack: Tpuctl, record: JobRecord, name: str = "state.json") -> Any:
    """The job's record on the controller, or None."""
    return await read_work(stack, record.id, name)


async def wait_for_tpuctl(stack: Tpuctl, record: JobRecord, *, other_than: int = 0) -> int:
    """Wait until tpuctl runs on the controller for the job; return its process id."""

    async def probe() -> int | None:
        state = await state_of(stack, record)
        child = state.get("child") if state else None
        return child if child not in (None, other_than) else None

    return int(await async_until(probe, "tpuctl running on the controller"))


async def wait_for_job(stack: Tpuctl, record: JobRecord) -> None:
    """Wait until the first attempt is running."""

    async def probe() -> bool | None:
        summary = next(job for job in await stack.jobs() if job.record.id == record.id)
        return summary.status.state == "running" or None

    await async_until(probe, "the job running")


async def restart_controller(stack: Tpuctl) -> None:
    where = {
        "project": stack.stack.project,
        "zone": stack.stack.zone,
        "instance": stack.stack.names.controller,
    }
    client = stack.cloud.client("instances")
    operation = await stack.cloud.call("reset", client.reset_unary, **where)
    await compute_operation(stack.cloud, operation, subject="reset", seconds=60)


async def test_controller_recovers_unattended_job(
    watched: Tpuctl,
    local_cloud: server_process.LocalCloud,
    script: Path,
    events: list[Event],
) -> None:
    """The controller's tpuctl is killed, the controller reboots, and the node is preempted."""
    await watched.up()
    assert not [event for event in events if isinstance(event, WarningIssued)]
    record = await watched.submit(script)
    causes = [event.because for event in events if isinstance(event, StepFinished)]
    assert [reason for reason in causes if f"controller recovers {record.id}" in reason]
    await wait_for_job(watched, record)

    first = await wait_for_tpuctl(watched, record)
    state = await state_of(watched, record)
    async with on_controller(watched) as transport:
        (await transport.run(["kill", "-9", str(state["pid"]), str(first)])).check("killing")
    second = await wait_for_tpuctl(watched, record, other_than=first)
    assert second != first, "the watcher started it again"

    await restart_controller(watched)

    async def is_restarted() -> bool | None:
        current = await state_of(watched, record)
        return True if current and current["pid"] != state["pid"] and current["child"] else None

    await async_until(is_restarted, "tpuctl running after the restart")

    since = remote_control.calls(local_cloud)[-1]["number"]
    node = await watched.node()
    remote_control.add_fault(local_cloud, "preempt", node=node.name)

    async def job_result() -> Any:
        return await state_of(watched, record, "result.json")

    result = await async_until(job_result, "the end of the job")
    assert (result["state"], result["exit_code"]) == ("succeeded", 0)
    assert (await watched.node()).id != node.id
    (attempt,) = await read_attempts(watched.store, record)
    assert (attempt.number, attempt.verdict.kind) == (2, "preemption")
    controller = watched.stack.names.controller
    account = watched.stack.service_account
    assert attempt.started_by == f"{watched.stack.user}@{controller} as {account}"
    log = await watched.store.get_bytes(record.at(2).log_name(0))
    assert log == b"attempt 2 TOKEN SECRET local\n"

    # All calls come from the stack's service account.
    makers = {
        call["caller"]
        for call in remote_control.calls(local_cloud, since)
        if call["method"].endswith(("/CreateNode", "/DeleteNode"))
    }
    assert makers == {watched.stack.service_account}

    # Secret values are only where the job reads them, and in no other persistent file.
    for item in await watched.store.list("tpuctl/"):
        content = await watched.store.get_bytes(item.name)
        assert not [each for each in (TOKEN, SECRET) if each.encode() in content], item.name
    async with on_controller(watched) as transport:
        matches = await transport.run(["grep", "-rlE", f"{TOKEN}|{SECRET}", ".tpuctl"])
    assert matches.stdout == b""
    assert await watched.follow(record, show=False) == 0, (
        "this computer reports the same result afterwards"
    )
    assert (await watched.down(delete_bucket=True)).leaks == ()


@pytest.mark.soak
async def test_follower_sees_controller_recovery(
    watched: Tpuctl, local_cloud: server_process.LocalCloud, script: Path
) -> None:
    """Another client waits while the controller replaces the node."""
    await watched.up()
    record = await watched.submit(script)
    await wait_for_job(watched, record)
    await wait_for_tpuctl(watched, record)

    async def is_being_replaced() -> bool | None:
        return (await watched.node()).state == "DELETING" or None

    try:
        remote_control.add_fault(local_cloud, "preempt", node=watched.stack.names.node)
        remote_control.change_settings(local_cloud, pace="real")  # deletions take a minute
        await async_until(is_being_replaced, "the controller deleting the node")
    finally:
        remote_control.change_settings(local_cloud, pace="instant")
    assert await asyncio.wait_for(watched.follow(record), 240) == 0
    (attempt,) = await read_attempts(watched.store, record)
    assert attempt.number == 2

    async def job_result() -> Any:
        return await state_of(watched, record, "result.json")

    assert (await async_until(job_result, "the end of the job"))["state"] == "succeeded"
    async with watched.connections() as transports:  # no matter which of the two created the node
        (await transports[0].run(["true"])).check("logging in")
    assert (await watched.down(delete_bucket=True)).leaks == ()


@pytest.mark.soak
async def test_stopped_job_is_not_recovered(watched: Tpuctl, script: Path) -> None:
    await watched.up()
    record = await watched.submit(script)
    await wait_for_job(watched, record)
    await wait_for_tpuctl(watched, record)
    await watched.stop(record, grace=1.0)

    async def job_result() -> Any:
        return await state_of(watched, record, "result.json")

    assert (await async_until(job_result, "the end of the job"))["state"] == "stopped"
    assert await read_attempts(watched.store, record) == []
    assert (await watched.down(delete_bucket=True)).leaks == ()


@pytest.mark.soak
async def test_deleted_stack_is_not_recreated(
    watched: Tpuctl, local_cloud: server_process.LocalCloud, script: Path
) -> None:
    await watched.up()
    record = await watched.submit(script)
    await wait_for_job(watched, record)
    await wait_for_tpuctl(watched, record)
    since = remote_control.calls(local_cloud)[-1]["number"]
    assert (await watched.down()).leaks == ()
    creations = [
        call for call in remote_control.calls(local_cloud, since) if "CreateNode" in call["method"]
    ]
    assert creations == []


@pytest.mark.soak
async def test_controller_starts_requested_attempt(watched: Tpuctl, script: Path) -> None:
    script.write_text(
        "import os, sys, time\ntime.sleep(5)\nsys.exit({'1': 75, '2': 75}.get("
        "os.environ['TPUCTL_ATTEMPT'], 0))\n",
        "utf-8",
    )
    await watched.up()
    record = await watched.submit(script)

    async def job_result() -> Any:
        return await state_of(watched, record, "result.json")

    result = await wait_until(
        job_result, description="the end", seconds=120, backoff=Backoff(0.2, 2.0)
    )
    assert (result["state"], result["exit_code"]) == ("succeeded", 0)
    attempts = await read_attempts(watched.store, record)
    assert [attempt.verdict.kind for attempt in attempts] == ["requested", "requested"]
    controller = watched.stack.names.controller
    actor = f"{watched.stack.user}@{controller} as {watched.stack.service_account}"
    assert {attempt.started_by for attempt in attempts} == {actor}
    assert (await watched.down(delete_bucket=True)).leaks == ()


async def test_controller_does_not_watch_without_retries(
    make_stack: MakeStack, script: Path, events: list[Event]
) -> None:
    none = "{preemption: 0, infrastructure: 0, failure: 0, requested: 0}"
    stack = make_stack(extra=f"controller: {{}}\njob: {{env: {{TOKEN: x}}, retries: {none}}}\n")
    await stack.up()
    record = await stack.submit(script)
    assert await state_of(stack, record) is None
    assert not [
        event for event in events if isinstance(event, StepFinished) and "recovery" in event.address
    ]
    await stack.stop(record, grace=1.0)
    assert (await stack.down(delete_bucket=True)).leaks == ()


@pytest.mark.soak
async def test_broken_controller_is_reported_and_job_runs(
    watched: Tpuctl, script: Path, events: list[Event]
) -> None:
    await watched.up()
    async with on_controller(watched) as transport:
        away = 'rm -rf .tpuctl/programs .tpuctl/controller; echo "not json" > .tpuctl/controller'
        (await transport.run(["sh", "-c", away])).check("breaking it")
    record = await watched.submit(script)
    warned = [event.diagnostic for event in events if isinstance(event, WarningIssued)]
    assert [diagnostic.summary for diagnostic in warned] == ["Controller does not recover the job"]
    assert "Jobs still run" in warned[0].detail
    assert warned[0].hint
    await wait_for_job(watched, record)
    await watched.stop(record, grace=1.0)
    assert (await watched.down(delete_bucket=True)).leaks == ()


@pytest.mark.soak
@pytest.mark.tensorflow("2.12.1")
@pytest.mark.timeout(900)  # the first time, the image is downloaded
async def test_tpu_node_controller_recovers_its_jobs(
    make_stack: MakeStack, local_cloud: server_process.LocalCloud, script: Path
) -> None:
    """The controller runs the job, recreates the node, and restarts the job."""
    stack = make_stack(
        runtime="auto, kind: node, capacity: preemptible",
        extra="limits: {idle: 2m}\njob: {env: {TOKEN: x}, retries: {preemption: 1}}\n",
    )
    await stack.up()
    record = await stack.submit(script)
    await wait_for_job(stack, record)
    node = await stack.node()
    remote_control.add_fault(local_cloud, "preempt", node=node.name)

    async def job_result() -> Any:
        return await state_of(stack, record, "result.json")

    result = await wait_until(
        job_result, description="the end", seconds=300, backoff=Backoff(0.2, 2.0)
    )
    assert (result["state"], result["exit_code"]) == ("succeeded", 0)
    assert (await stack.node()).created != node.created
    (attempt,) = await read_attempts(stack.store, record)
    assert (attempt.number, attempt.verdict.kind) == (2, "preemption")
    host = f"{stack.stack.user}@{stack.stack.names.controller}"
    assert attempt.started_by == f"{host} as {stack.stack.service_account}"
    assert (await stack.down(delete_bucket=True)).leaks == ()
