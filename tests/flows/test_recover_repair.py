"""Recovery from broken machines, missing capacity, and interruptions of the recovery itself."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.forked_cli import forked_tpuctl
from tests.support.polling import async_until
from tests.support.queued import with_queue
from tests.support.recovery_jobs import COUNTING, inject_fault, log_of, notes, script
from tpuctl.api import Tpuctl
from tpuctl.errors import NoCapacity, Usage
from tpuctl.flows.jobs import attempt_outcome, jobs, recover
from tpuctl.flows.jobs.attempts import claim_attempt, read_attempts
from tpuctl.flows.machines import workers
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.model.cost.stack_cost import cost_of
from tpuctl.model.events import Event, JobEnded, LogChunk, WarningIssued
from tpuctl.model.jobs.attempt import Attempt, Verdict
from tpuctl.model.jobs.job import JobRecord
from tpuctl.polling import Backoff

MakeStack = Callable[..., Tpuctl]
SPOT = "tpu-ubuntu2204-base, capacity: spot"
ENDLESS = "import time\nprint('began', flush=True)\ntime.sleep(600)\n"
# Fails with JAX's error about a killed process's lock file in the first attempts.
LOCKED_TPU = """
import os, sys
if int(os.environ["TPUCTL_ATTEMPT"]) <= int(sys.argv[1]):
    raise RuntimeError(
        "Unable to initialize backend 'tpu': ABORTED: The TPU is already in use by process with "
        "pid 176028. Not attempting to load libtpu.so in this process."
    )
print("computed")
"""


@pytest.fixture
async def faults(local_cloud: LocalCloud) -> AsyncIterator[LocalCloud]:
    yield local_cloud
    await asyncio.to_thread(remote_control.remove_all_faults, local_cloud)


@pytest.fixture(autouse=True)
def short_backoffs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recover, "RETRY_BACKOFF", Backoff(0.01, 0.01))
    monkeypatch.setattr(recover, "CAPACITY_BACKOFF", Backoff(0.05, 0.05))
    monkeypatch.setattr(attempt_outcome, "SETTLE_SECONDS", 0.1)


async def down_and_verify(stack: Tpuctl) -> None:
    assert (await stack.down(delete_bucket=True)).leaks == ()


def errors(events: list[Event]) -> list[Any]:
    return [
        event.diagnostic for event in events if isinstance(event, WarningIssued) and event.is_error
    ]


async def test_infrastructure_failure_is_retried_on_same_node(
    make_stack: MakeStack, events: list[Event]
) -> None:
    stack = make_stack()
    await stack.up()
    before = (await stack.node()).id
    record = await stack.submit(script(stack, LOCKED_TPU), ["2"])
    assert await asyncio.wait_for(stack.follow(record), 60) == 0
    assert log_of(events, 3) == "computed\n"
    assert (await stack.node()).id == before
    assert [
        (attempt.verdict.kind, attempt.verdict.name)
        for attempt in await read_attempts(stack.store, record)
    ] == [("infrastructure", "libtpu-lock")] * 2
    assert "infrastructure 1" in notes(events)
    spent = await stack.submit(script(stack, LOCKED_TPU), ["9"])
    assert await asyncio.wait_for(stack.follow(spent), 60) == 69
    (diagnostic,) = errors(events)
    assert "No retries left (job.retries.infrastructure: 3)" in diagnostic.detail
    assert len(await read_attempts(stack.store, spent)) == 3
    await down_and_verify(stack)


async def test_script_failure_is_retried_only_if_configured(
    make_stack: MakeStack, events: list[Event]
) -> None:
    stack = make_stack(extra="job: {retries: {failure: 1}}\n")
    await stack.up()
    record = await stack.submit(script(stack, "print('tried')\nraise SystemExit(7)\n"))
    assert await asyncio.wait_for(stack.follow(record), 60) == 7
    assert [log_of(events, number) for number in (1, 2, 3)] == ["tried\n", "tried\n", ""]
    assert [attempt.verdict.kind for attempt in await read_attempts(stack.store, record)] == [
        "failure"
    ]
    await down_and_verify(stack)


# Exits with 75 in as many attempts as the argument says.
ASKING = """
import os, sys
print("attempt", os.environ["TPUCTL_ATTEMPT"], os.environ["TPUCTL_OUTPUT"])
sys.exit(75 if int(os.environ["TPUCTL_ATTEMPT"]) <= int(sys.argv[1]) else 0)
"""


async def test_script_that_exits_with_75_gets_another_attempt(
    make_stack: MakeStack, events: list[Event]
) -> None:
    stack = make_stack(extra="job: {retries: {requested: 1}}\n")
    await stack.up()
    before = (await stack.node()).id
    record = await stack.submit(script(stack, ASKING), ["1"])
    assert await asyncio.wait_for(stack.follow(record), 60) == 0
    message = "the job asked for another attempt: it exited with code 75"
    assert log_of(events, 1) == f"attempt 1 {record.output}\ntpuctl: {message}\n"
    assert log_of(events, 2) == f"attempt 2 {record.output}\n"
    assert (await stack.node()).id == before
    (attempt,) = await read_attempts(stack.store, record)
    assert (attempt.verdict.kind, attempt.verdict.name) == ("requested", "requested")
    assert "The job asked for another attempt" in notes(events)
    events.clear()
    spent = await stack.submit(script(stack, ASKING), ["9"])
    assert await asyncio.wait_for(stack.follow(spent), 60) == 75
    (diagnostic,) = errors(events)
    assert "No retries left (job.retries.requested: 1)" in diagnostic.detail
    (ended,) = [event for event in events if isinstance(event, JobEnded)]
    assert (ended.state, ended.is_job_exit_code) == ("failed", True)
    assert len(await read_attempts(stack.store, spent)) == 1
    explanation = await stack.explain(await stack.job())
    assert explanation.failure is not None
    assert explanation.failure.name == "requested"
    await down_and_verify(stack)


@pytest.mark.soak
async def test_all_workers_restart_when_one_exits_with_75(
    make_stack: MakeStack, events: list[Event]
) -> None:
    stack = make_stack(type_name="v3-32", zone="europe-west4-a")
    await stack.up()
    text = """
import os, sys, time
print("attempt", os.environ["TPUCTL_ATTEMPT"], flush=True)
if os.environ["TPUCTL_ATTEMPT"] == "1":
    if os.environ["TPUCTL_WORKER"] == "2":
        sys.exit(75)
    time.sleep(600)
"""
    record = await stack.submit(script(stack, text), check=False)
    assert await asyncio.wait_for(stack.follow(record, all_workers=True), 120) == 0
    (attempt,) = await read_attempts(stack.store, record)
    assert (attempt.verdict.kind, attempt.verdict.worker) == ("requested", 2)
    for worker in range(4):
        log = await stack.store.get_bytes(record.at(2).log_name(worker))
        assert log == b"attempt 2\n"
    await down_and_verify(stack)


@pytest.mark.soak
async def test_unreachable_machines_are_recreated(
    make_stack: MakeStack,
    faults: LocalCloud,
    events: list[Event],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recover, "UNREACHABLE_SECONDS", 0.5)
    monkeypatch.setattr(workers, "SSH_RETRY_SECONDS", 0.5)
    stack = make_stack()
    await stack.up()
    before = (await stack.node()).id
    record = await stack.submit(script(stack, COUNTING), ["10", "0.05"])
    following = asyncio.ensure_future(stack.follow(record))
    await async_until(lambda: "step 3\n" in log_of(events, 1), "step 3")
    await inject_fault(faults, "host-unreachable", node=(await stack.node()).name, mode="refused")
    assert await asyncio.wait_for(following, 120) == 0
    assert (await stack.node()).id != before
    (attempt,) = await read_attempts(stack.store, record)
    assert (attempt.verdict.kind, attempt.verdict.name) == ("infrastructure", "worker-gone")
    assert "not reachable: recreating it" in notes(events)
    await down_and_verify(stack)


@pytest.mark.soak
async def test_unreachable_but_running_job_is_not_restarted(
    make_stack: MakeStack,
    faults: LocalCloud,
    events: list[Event],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As after a laptop changed networks: the running job is found again, not restarted."""
    monkeypatch.setattr(recover, "UNREACHABLE_SECONDS", 0.3)
    stack = make_stack()
    await stack.up()
    record = await stack.submit(script(stack, COUNTING), ["60", "0.05"])
    node = (await stack.node()).name
    refused = await inject_fault(faults, "ssh-key-refused", node=node, times="unlimited")
    following = asyncio.ensure_future(stack.follow(record))
    await async_until(
        lambda: "reconnecting to the workers" in notes(events),
        "reconnecting to the workers",
    )
    await asyncio.to_thread(remote_control.remove_fault, faults, refused)
    assert await asyncio.wait_for(following, 120) == 0
    assert log_of(events, 1).endswith("step 59\ncounted\n")
    assert await read_attempts(stack.store, record) == []
    await down_and_verify(stack)


@pytest.mark.soak
async def test_another_machine_resumes_killed_recovery(
    make_stack: MakeStack,
    faults: LocalCloud,
    events: list[Event],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    stack = make_stack(runtime=SPOT)
    await stack.up()
    record = await stack.submit(script(stack, COUNTING), ["10", "0.05"])
    await wait_for_log(stack, "step 2\n")
    await inject_fault(faults, "preempt", node=(await stack.node()).name)
    hold = await inject_fault(faults, "hold", method="CreateNode")
    laptop = subprocess.Popen(
        [forked_tpuctl(), "wait"],
        cwd=stack.stack_file.parent,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        await asyncio.to_thread(remote_control.wait_held, faults, hold, 90)
    finally:
        laptop.send_signal(signal.SIGKILL)
        stderr = laptop.communicate()[1].decode()
    assert "Google preempted the node" in stderr
    assert "retries left: preemption 9" in stderr
    await asyncio.to_thread(remote_control.release, faults, hold, drop=True)
    await asyncio.to_thread(remote_control.remove_fault, faults, hold)
    assert not (await stack.status()).nodes, "the preemption is no longer visible"
    monkeypatch.setenv("TPUCTL_CONFIG_HOME", str(tmp_path / "other"))
    other = Tpuctl(stack.stack_file, cloud="local", emit=events.append)
    assert await asyncio.wait_for(other.follow(await other.job()), 120) == 0
    (attempt,) = await read_attempts(stack.store, record)
    assert (attempt.number, attempt.verdict.kind) == (2, "preemption")
    assert log_of(events, 2).endswith("counted\n")
    await down_and_verify(other)


async def wait_for_log(stack: Tpuctl, text: str) -> None:
    seen: list[Event] = []
    listener = Tpuctl(stack.stack_file, cloud="local", emit=seen.append)
    following = asyncio.ensure_future(listener.follow(await listener.job()))
    await async_until(lambda: text in log_of(seen, 1), text)
    following.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await following


async def test_manually_deleted_node_is_not_recreated(
    make_stack: MakeStack, faults: LocalCloud, events: list[Event]
) -> None:
    stack = make_stack(runtime=SPOT)
    await stack.up()
    record = await stack.submit(script(stack, ENDLESS))
    node = await stack.node()
    client = stack.cloud.client("tpu")
    name = f"projects/local-project/locations/{node.zone}/nodes/{node.name}"
    following = asyncio.ensure_future(stack.follow(record))
    await async_until(lambda: "began" in log_of(events, 1), "began")
    await stack.cloud.call("it", client.delete_node, {"name": name})
    assert await asyncio.wait_for(following, 120) == 69
    assert "The node was deleted" in errors(events)[0].detail
    assert await read_attempts(stack.store, record) == []

    async def has_no_node() -> bool:
        return not (await stack.status()).nodes

    await async_until(has_no_node, "the end of the deletion")
    await down_and_verify(stack)


@pytest.mark.soak
async def test_recovery_retries_without_capacity_and_in_other_zones(
    make_stack: MakeStack,
    faults: LocalCloud,
    events: list[Event],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stack = make_stack(runtime=SPOT, zone="us-central1-b, us-central1-c")
    await stack.up()
    record = await stack.submit(script(stack, COUNTING), ["10", "0.05"])
    following = asyncio.ensure_future(stack.follow(record))
    await async_until(lambda: "step 2\n" in log_of(events, 1), "step 2")
    await inject_fault(faults, "stockout", zone="us-central1-b", times="unlimited")
    for_now = await inject_fault(faults, "stockout", zone="us-central1-c", times="unlimited")
    await inject_fault(faults, "preempt", node=(await stack.node()).name)
    await async_until(lambda: "retrying until" in notes(events), "retrying until")
    await asyncio.to_thread(remote_control.remove_fault, faults, for_now)
    assert await asyncio.wait_for(following, 120) == 0
    (attempt,) = await read_attempts(stack.store, record)
    assert attempt.placement.zone == "us-central1-c"
    monkeypatch.setattr(recover, "CAPACITY_SECONDS", 0.0)
    again = await stack.submit(script(stack, ENDLESS))
    await inject_fault(faults, "stockout", zone="us-central1-c", times="unlimited")
    await inject_fault(faults, "preempt", node=(await stack.node()).name)
    with pytest.raises(NoCapacity, match=rf"job {again.id} is waiting for a node"):
        await asyncio.wait_for(stack.follow(again), 120)
    await asyncio.to_thread(remote_control.remove_all_faults, faults)
    await down_and_verify(stack)


@pytest.mark.soak
async def test_preempted_queued_slice_resumes(
    make_stack: MakeStack, faults: LocalCloud, events: list[Event]
) -> None:
    stack = with_queue(make_stack)(type_name="v3-32", zone="europe-west4-a", tpu="capacity: spot")
    await stack.up()
    record = await stack.submit(script(stack, COUNTING), ["20", "0.1"])
    following = asyncio.ensure_future(stack.follow(record, all_workers=True))

    def of(worker: int, attempt: int) -> str:
        chunks = [
            chunk for chunk in events if isinstance(chunk, LogChunk) and chunk.attempt == attempt
        ]
        return b"".join(chunk.data for chunk in chunks if chunk.worker == worker).decode()

    await async_until(lambda: all("step 3\n" in of(worker, 1) for worker in range(4)), "step 3")
    await inject_fault(faults, "preempt", node=(await stack.node()).name)
    assert await asyncio.wait_for(following, 180) == 0
    (attempt,) = await read_attempts(stack.store, record)
    assert attempt.verdict.kind == "preemption"
    for worker in range(4):
        lines = of(worker, 2).splitlines()
        assert lines[-1] == f"[worker {worker}] counted"
        begun = int(lines[0].rpartition(" ")[2])
        assert begun >= 3
        assert lines[1:-1] == [f"[worker {worker}] step {number}" for number in range(begun, 20)]
    await down_and_verify(stack)


@pytest.mark.soak
async def test_claimed_but_not_started_attempt_is_followed_by_another(
    make_stack: MakeStack, events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the laptop was closed after the claim; anything that it still starts is stopped."""
    monkeypatch.setattr(recover, "START_SECONDS", 0.3)
    stack = make_stack()
    await stack.up()
    record = await stack.submit(script(stack, LOCKED_TPU), ["1"])
    await wait_for_end(stack, record)
    why = Verdict(kind="infrastructure", name="x", cause="It broke.", at=record.submitted)
    assert record.placement is not None
    left = Attempt(
        number=2, placement=record.placement, verdict=why, started=record.submitted, write_id="x"
    )
    assert await claim_attempt(stack.store, record, left)
    assert await asyncio.wait_for(stack.follow(await stack.job()), 60) == 0
    attempts = await read_attempts(stack.store, record)
    assert [(attempt.number, attempt.verdict.name) for attempt in attempts] == [
        (2, "x"),
        (3, "not-started"),
    ]
    assert await stack.store.exists(record.at(2).end_name)
    assert log_of(events, 3) == "computed\n"
    assert not await claim_attempt(stack.store, record, left.model_copy(update={"write_id": "y"}))
    await down_and_verify(stack)


async def wait_for_end(stack: Tpuctl, record: JobRecord) -> None:
    async def has_ended() -> bool:
        return (await jobs.read_status(stack.store, record)).exit_code is not None

    await async_until(has_ended, "the job's end")


@pytest.mark.soak
async def test_interrupted_recovery_explains_how_to_resume(
    make_stack: MakeStack, faults: LocalCloud, events: list[Event]
) -> None:
    stack = make_stack(runtime=SPOT)
    await stack.up()
    record = await stack.submit(script(stack, COUNTING), ["4", "0.3"])
    following = asyncio.ensure_future(stack.follow(record))
    await async_until(lambda: "step 1\n" in log_of(events, 1), "step 1")
    hold = await inject_fault(faults, "hold", method="CreateNode")
    await inject_fault(faults, "preempt", node=(await stack.node()).name)
    await asyncio.to_thread(remote_control.wait_held, faults, hold, 90)
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following
    assert f"tpuctl wait {record.id}" in notes(events)
    assert "is not running" in notes(events)
    await asyncio.to_thread(remote_control.remove_fault, faults, hold)
    assert await asyncio.wait_for(stack.follow(await stack.job(), show=False), 120) == 0
    assert len(await read_attempts(stack.store, record)) == 1
    await down_and_verify(stack)


@pytest.mark.soak
async def test_missing_variable_fails_recovery_before_changes(
    make_stack: MakeStack, faults: LocalCloud
) -> None:
    stack = make_stack(runtime=SPOT, extra="job: {env: {TOKEN: hush}}\n")
    await stack.up()
    text = "import os, time\nassert os.environ['TOKEN']\nprint('known', flush=True)\n"
    record = await stack.submit(
        script(stack, text + "time.sleep(600 if os.environ['TPUCTL_ATTEMPT'] == '1' else 0)\n")
    )
    await wait_for_log(stack, "known\n")
    await inject_fault(faults, "preempt", node=(await stack.node()).name)
    written = stack.stack_file.read_text()
    stack.stack_file.write_text(written.replace("job: {env: {TOKEN: hush}}\n", ""))
    poor = Tpuctl(stack.stack_file, cloud="local")
    with pytest.raises(Usage, match="TOKEN"):
        await asyncio.wait_for(poor.follow(record), 60)
    assert (await poor.node()).state == "PREEMPTED"
    stack.stack_file.write_text(written)
    rich = Tpuctl(stack.stack_file, cloud="local")
    assert await asyncio.wait_for(rich.follow(record), 120) == 0
    await down_and_verify(stack)


@pytest.mark.soak
@pytest.mark.usefixtures("startup_scripts")
async def test_limit_ends_job_without_retry(
    make_stack: MakeStack,
    events: list[Event],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attempt_outcome, "SETTLE_SECONDS", 60.0)
    hourly = cost_of(make_stack(runtime=SPOT).stack).per_hour
    assert hourly is not None
    stack = make_stack(runtime=SPOT, extra=f"limits: {{max_cost: {hourly / 3600 * 20:.9f}}}\n")
    await stack.up()
    record = await stack.submit(script(stack, ENDLESS))
    assert await asyncio.wait_for(stack.follow(record), 180) == 124
    (diagnostic,) = errors(events)
    assert diagnostic.summary == "Job reached its time limit"
    assert "limits.max_cost" in diagnostic.detail
    assert await read_attempts(stack.store, record) == []

    async def is_deleted() -> bool:
        return not (await stack.status()).nodes

    await async_until(is_deleted, "the node deleting itself")  # after the job's end
    await down_and_verify(stack)


@pytest.mark.soak
async def test_recovery_waits_for_end_of_maintenance(
    make_stack: MakeStack, faults: LocalCloud, events: list[Event]
) -> None:
    stack = make_stack()
    await stack.up()
    before = (await stack.node()).id
    cut = LOCKED_TPU.replace("RuntimeError", "ConnectionError").replace(
        "Unable to initialize backend 'tpu': ABORTED: The TPU is already in use by process with "
        '"\n        "pid 176028. Not attempting to load libtpu.so in this process.',
        "UNAVAILABLE: Socket closed",
    )
    assert "Socket closed" in cut
    await asyncio.to_thread(remote_control.change_settings, faults, pace="quick")
    try:
        await inject_fault(faults, "maintenance", node=(await stack.node()).name)
        async with asyncio.timeout(30):
            while "MAINTENANCE" not in (await stack.node()).health:
                await asyncio.sleep(0.05)
        record = await stack.submit(script(stack, cut), ["1"])
        assert await asyncio.wait_for(stack.follow(record), 120) == 0
        assert (await stack.node()).id == before
        (attempt,) = await read_attempts(stack.store, record)
        assert attempt.verdict.kind == "infrastructure"
        assert (attempt.verdict.name == "maintenance") == ("waiting for it to end" in notes(events))
    finally:
        await asyncio.to_thread(remote_control.change_settings, faults, pace="instant")
    await down_and_verify(stack)


@pytest.mark.soak
@pytest.mark.tensorflow("2.12.1")
@pytest.mark.timeout(900)  # the first time, the image is downloaded
async def test_job_of_preempted_tpu_node_is_stopped_and_resumed(
    make_stack: MakeStack,
    faults: LocalCloud,
    events: list[Event],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recover, "NODE_POLL_SECONDS", 0.5)
    stack = make_stack(runtime="auto, kind: node, capacity: preemptible")
    await stack.up()
    controller = (await stack.transports())[0].address
    record = await stack.submit(
        script(
            stack,
            "import os, time\nprint('began', flush=True)\n"
            "time.sleep(600 if os.environ['TPUCTL_ATTEMPT'] == '1' else 0)\n",
        )
    )
    following = asyncio.ensure_future(stack.follow(record))
    await async_until(lambda: "began" in log_of(events, 1), "began")
    await inject_fault(faults, "preempt", node=(await stack.node()).name)
    assert await asyncio.wait_for(following, 180) == 0
    (attempt,) = await read_attempts(stack.store, record)
    assert (attempt.verdict.kind, attempt.verdict.name) == ("preemption", "preempted")
    assert "stopping the job that waits for it" in notes(events)
    assert (await stack.transports())[0].address == controller, "the controller stays"
    await down_and_verify(stack)


async def test_failed_script_keeps_exit_code_if_cloud_is_unavailable(
    make_stack: MakeStack, faults: LocalCloud, events: list[Event]
) -> None:
    stack = make_stack()
    await stack.up()
    record = await stack.submit(script(stack, "raise SystemExit(42)\n"))
    await wait_for_end(stack, record)
    listing = await inject_fault(faults, "deny", method="storage.objects.list", times="unlimited")
    assert await asyncio.wait_for(stack.follow(record), 60) == 42
    assert errors(events)[-1].summary == "Job failed"
    await asyncio.to_thread(remote_control.remove_fault, faults, listing)
    await down_and_verify(stack)
