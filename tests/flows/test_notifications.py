"""What happens to jobs and machines reaches a webhook, also when no client follows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from tests.support.polling import async_until
from tests.support.recovery_jobs import COUNTING, inject_fault, log_of, script
from tests.support.secret_manager import Secrets
from tests.support.webhook_receiver import Receiver, receiving
from tpuctl.api import Tpuctl
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.model.events import Event

MakeStack = Callable[..., Tpuctl]
NOTIFY = "notify: secret:webhook\nlimits: {idle: 20m}\n"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


@pytest.fixture
async def stack(
    make_stack: MakeStack, local_cloud: LocalCloud, receiver: Receiver
) -> AsyncIterator[Tpuctl]:
    """A spot stack whose machines send notifications to the receiver."""
    secrets = Secrets(local_cloud, "local-project")
    await asyncio.to_thread(secrets.enable)
    await asyncio.to_thread(secrets.create, "webhook", receiver.url.encode())
    stack = make_stack(runtime="tpu-ubuntu2204-base, capacity: spot", extra=NOTIFY)
    await stack.up()
    yield stack
    await asyncio.to_thread(remote_control.remove_all_faults, local_cloud)
    assert (await stack.down(delete_bucket=True)).leaks == ()


async def received(receiver: Receiver, *kinds: str) -> None:
    """Wait for exactly these events."""

    def has_arrived() -> bool:
        return len(receiver.bodies) >= len(kinds)

    await async_until(has_arrived, f"{kinds}")
    assert [event["event"] for event in receiver.events] == [*kinds]


async def test_preempted_job_is_reported_until_it_ends(
    stack: Tpuctl, local_cloud: LocalCloud, receiver: Receiver, events: list[Event]
) -> None:
    await received(receiver, "granted")
    record = await stack.submit(script(stack, COUNTING), ["60", "0.2"])
    following = asyncio.ensure_future(stack.follow(record))
    await async_until(lambda: "step 5\n" in log_of(events, 1), "step 5")
    await inject_fault(local_cloud, "preempt", node=(await stack.node()).name)
    assert await asyncio.wait_for(following, 180) == 0
    await async_until(lambda: len(receiver.bodies) >= 5, "all events")
    # The new node and the job that runs on it again are reported by different machines.
    kinds = [event["event"] for event in receiver.events]
    assert kinds[:2] + kinds[-1:] == ["granted", "preempted", "ended"]
    assert sorted(kinds[2:-1]) == ["granted", "recovered"]
    ended = receiver.events[-1]
    assert (ended["job"], ended["attempt"], ended["exit_code"]) == (record.id, 2, 0)
    assert ended["cost"] > 0
    assert ended["command"].startswith(f"tpuctl logs {record.id} --stack {stack.stack.name} ")
    for entry in await stack.store.list(""):
        assert b"secret-token" not in await stack.store.get_bytes(entry.name), entry.name
    assert "secret-token" not in repr(events)


async def test_machines_report_without_a_client(stack: Tpuctl, receiver: Receiver) -> None:
    failing = await stack.submit(script(stack, "import sys\nsys.exit(3)\n"))
    await received(receiver, "granted", "failed")
    assert receiver.events[-1]["id"] == f"{failing.id}.1.end"
    assert receiver.events[-1]["detail"] == "the script failed with exit code 3"
    receiver.script = [500]
    await stack.submit(script(stack, "print('done')\n"))
    await received(receiver, "granted", "failed", "ended", "ended")
    async with stack.connections() as transports:
        searched = await transports[0].run(["grep", "-rl", "secret-token", "."])
    assert searched.stdout == b""
