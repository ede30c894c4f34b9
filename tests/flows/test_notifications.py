"""What happens to jobs and machines reaches a webhook, also when no client follows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from tests.support.forked_cli import run_tpuctl
from tests.support.polling import async_until
from tests.support.recovery_jobs import COUNTING, inject_fault, log_of, script
from tests.support.secret_manager import Secrets
from tests.support.webhook_receiver import Receiver, receiving
from tpuctl.api import Tpuctl
from tpuctl.errors import NotFound, Usage
from tpuctl.flows.machines.notify import send_test
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.model.events import Event, WarningIssued
from tpuctl.remote.keys import config_home
from tpuctl.view.schemas import envelope_schema

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
    stack: Tpuctl,
    local_cloud: LocalCloud,
    receiver: Receiver,
    events: list[Event],
    tmp_path: Path,
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
    program, *arguments = ended["command"].split()
    assert (program, arguments[:4]) == ("tpuctl", ["--cloud", "local", "logs", record.id])
    done = run_tpuctl(*arguments, folder=tmp_path)
    assert (done.returncode, "step 59" in done.stdout) == (0, True), done.stderr
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
    with stack.stack_file.open("a", encoding="utf-8") as file:
        file.write("job: {limits: {hang: 1s}}\n")
    patient = Tpuctl(stack.stack_file, cloud="local")
    hanging = await patient.submit(script(stack, "import time\ntime.sleep(600)\n"))
    await received(receiver, "granted", "failed", "ended", "ended", "hung")
    assert receiver.events[-1]["text"].startswith(f"Job {hanging.id} may hang: no output for ")
    await patient.stop(hanging)
    async with stack.connections() as transports:
        searched = await transports[0].run(["grep", "-rl", "secret-token", "."])
    assert searched.stdout == b""


async def test_notify_test_shows_the_answer(stack: Tpuctl, receiver: Receiver) -> None:
    await received(receiver, "granted")
    folder = stack.stack_file.parent

    def run(*options: str) -> tuple[int, str, str]:
        done = run_tpuctl("notify", "test", *options, folder=folder)
        return done.returncode, done.stdout, done.stderr

    code, out, err = await asyncio.to_thread(run)
    assert (code, out, err) == (0, "Sent a test message as json: HTTP 200.\n", "")
    assert receiver.events[-1]["text"].startswith("Test of notifications: sent by ")
    _, out, _ = await asyncio.to_thread(run, "--json")
    data = {"format": "json", "status": 200, "machines_have_access": True}
    assert json.loads(out)["data"] == data
    Draft202012Validator(envelope_schema()).validate(json.loads(out))
    receiver.script = [404]
    code, _, err = await asyncio.to_thread(run)
    assert code == 1
    assert "projects/local-project/secrets/webhook: HTTP 404" in err
    assert "secret-token" not in out + err
    records = [path for path in config_home().rglob("*") if path.is_file()]
    texts = [path.read_bytes() for path in records]
    assert any(b"read_url" in text for text in texts), "calls are recorded"
    assert not any(b"secret-token" in text for text in texts)


async def test_notify_test_warns_about_machines_without_access(
    make_stack: MakeStack, local_cloud: LocalCloud, receiver: Receiver, events: list[Event]
) -> None:
    secrets = Secrets(local_cloud, "local-project")
    await asyncio.to_thread(secrets.enable)
    await asyncio.to_thread(secrets.create, "alone", receiver.url.encode())
    stack = make_stack(extra="notify: secret:alone\n")
    test = await send_test(stack.context)
    assert (test.status, test.machines_have_access) == (200, False)
    (warning,) = [event.diagnostic for event in events if isinstance(event, WarningIssued)]
    assert warning.summary == "Machines cannot read the webhook's URL"
    absent = make_stack(extra="notify: secret:absent\n")
    with pytest.raises(NotFound, match="no projects/local-project/secrets/absent"):
        await send_test(absent.context)
    with pytest.raises(Usage, match="no section notify"):
        await send_test(make_stack().context)


async def test_limit_is_reported_before_the_machine_is_deleted(
    make_stack: MakeStack, local_cloud: LocalCloud, receiver: Receiver
) -> None:
    secrets = Secrets(local_cloud, "local-project")
    await asyncio.to_thread(secrets.enable)
    await asyncio.to_thread(secrets.create, "limit", receiver.url.encode())
    stack = make_stack(extra="notify: secret:limit\nlimits: {idle: 8s}\n")
    await stack.up()
    await received(receiver, "granted", "limit")
    assert "(limits.idle)" in receiver.events[-1]["detail"]
    assert (await stack.down(delete_bucket=True)).leaks == ()
