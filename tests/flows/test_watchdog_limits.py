"""Machines that enforce their stack's limits themselves, on real machines of the local cloud."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.locations import V6E_ZONE, ZONE
from tests.support.polling import async_until
from tests.support.recovery_jobs import log_of
from tpuctl.api import Tpuctl
from tpuctl.errors import Denied, NotFound, TimedOut
from tpuctl.flows.machines.inventory import list_resources
from tpuctl.flows.stack.up import WatchdogState, prepare_machines
from tpuctl.local_cloud import remote_control, server_process
from tpuctl.model.events import Event
from tpuctl.model.stack.spending import Ledger
from tpuctl.model.status.inventory import ResourceKind
from tpuctl.remote.transport import Transport
from tpuctl.resources.project.ledger import LedgerObject

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("startup_scripts")]

MakeStack = Callable[..., Tpuctl]
STATE = "../root/.tpuctl/watchdog/watchdog.json"  # of a watchdog started by root


async def until_deleted(stack: Tpuctl) -> None:
    """Wait until the stack has no node."""

    async def probe() -> bool | None:
        return True if not (await stack.status()).nodes else None

    await async_until(probe, "the node deleting itself")


async def nodes(stack: Tpuctl) -> list[Any]:
    parent = f"projects/{stack.stack.project}/locations/{stack.stack.zone}"
    found_nodes = await stack.cloud.call(
        "nodes",
        lambda **options: list(stack.cloud.client("tpu").list_nodes({"parent": parent}, **options)),
    )
    return [node for node in found_nodes if node.labels.get("tpuctl-stack") == stack.stack.name]


async def machines(stack: Tpuctl, exits: AsyncExitStack) -> dict[int, Transport]:
    transports = await stack.transports()
    for transport in transports.values():
        exits.push_async_callback(transport.close)
    return dict(transports)


async def prepared(stack: Tpuctl, worker: Transport) -> WatchdogState:
    """The machine's watchdog, which is started if it does not run."""
    bucket = stack.stack.bucket
    return (await prepare_machines({0: worker}, bucket, print, has_watchdog=True))[0]


async def set_limits(make_stack: MakeStack, stack: Tpuctl, limits: str, **options: str) -> None:
    """Change the limits of a stack that exists: what must happen before they apply, has happened.

    ``options`` are the stack's other settings, unchanged.
    """
    changed = make_stack(name=stack.stack.name, extra=f"limits: {{{limits}}}\n", **options)
    changes = {change.address: change for change in (await changed.up()).plan}
    assert "limits" in changes[f"node/{stack.stack.names.node}"].fields


async def watchdog_settings(transport: Transport) -> dict[str, Any]:
    read = (
        "python3 -c \"import os, urllib.request as r; q = r.Request('http://' + "
        "os.environ['GCE_METADATA_HOST'] + '/computeMetadata/v1/instance/attributes/'"
        " + 'tpuctl-watchdog', "
        "headers={'Metadata-Flavor': 'Google'}); print(r.urlopen(q).read().decode())\""
    )
    done = await transport.run(["sh", "-c", read])
    return dict(json.loads(done.check("reading the settings").stdout))


async def test_idle_node_deletes_itself(make_stack: MakeStack) -> None:
    stack = make_stack(extra="limits: {idle: 5s}\n")
    await stack.up()
    await until_deleted(stack)
    assert (await stack.down(delete_bucket=True)).leaks == ()


@pytest.mark.soak
async def test_watchdog_retries_denied_deletion(
    make_stack: MakeStack, local_cloud: server_process.LocalCloud
) -> None:
    stack = make_stack(extra="limits: {idle: 5s}\n")
    fault = remote_control.add_fault(local_cloud, "deny", method="DeleteNode", times="unlimited")
    await stack.up()
    async with AsyncExitStack() as exits:
        worker = (await machines(stack, exits))[0]

        async def probe() -> str | None:
            text = (await worker.run(["cat", STATE])).stdout
            return json.loads(text).get("failure") or None

        assert "HTTP 403" in await async_until(probe, "the error being reported")
    remote_control.remove_fault(local_cloud, fault["id"])
    await until_deleted(stack)


@pytest.mark.soak
@pytest.mark.tensorflow("2.12.1")
@pytest.mark.timeout(900)
async def test_idle_controller_deletes_its_node_too(make_stack: MakeStack) -> None:
    stack = make_stack(runtime="auto, kind: node", extra="limits: {idle: 6s}\n")
    await stack.up()
    assert [item.address.partition("/")[0] for item in await left(stack)] != []

    async def probe() -> bool | None:
        return True if not await left(stack) else None

    await async_until(probe, "node and controller deleting themselves")
    assert (await stack.down(delete_bucket=True)).leaks == ()


async def left(stack: Tpuctl) -> list[Any]:
    def of(kind: type[ResourceKind]) -> bool:
        return kind.kind in ("tpu", "controller")

    return [
        *await list_resources(stack.cloud, stack.stack.project, stack=stack.stack.name, include=of)
    ]


async def test_node_without_limits_has_no_watchdog(make_stack: MakeStack) -> None:
    stack = make_stack(extra="limits: {idle: null}\n")
    await stack.up()
    (node,) = await nodes(stack)
    assert not {"startup-script", "tpuctl-watchdog"} & {*node.metadata} or (
        node.metadata.get("tpuctl-watchdog") == "{}" and "startup-script" not in node.metadata
    )


async def test_running_job_keeps_node_alive(make_stack: MakeStack, tmp_path: Path) -> None:
    stack = make_stack(extra="limits: {idle: 1h}\n")
    await stack.up()
    script = tmp_path / "job" / "wait.py"
    script.parent.mkdir()
    script.write_text(
        "import pathlib, time\n"
        "while not pathlib.Path('/tmp/enough').exists():\n    time.sleep(0.1)\n",
        "utf-8",
    )
    await stack.submit(script, check=False)
    await set_limits(make_stack, stack, "idle: 10s")
    async with AsyncExitStack() as exits:
        worker = (await machines(stack, exits))[0]
        state = await prepared(stack, worker)
        assert not state.was_started, "started by the machine's startup script"
    # Longer than the limit, counted in heartbeats: each one detected the job.
    async with AsyncExitStack() as exits:
        worker = (await machines(stack, exits))[0]
        states = []
        while len(states) < 6:
            text = (await worker.run(["cat", STATE])).stdout
            state_now = json.loads(text)
            if not states or state_now["heartbeat"] != states[-1]["heartbeat"]:
                states.append(state_now)
            await asyncio.sleep(0.2)
    assert {watch_state["activity"] for watch_state in states[1:]} == {"a job is running"}
    assert len(await nodes(stack)) == 1
    async with AsyncExitStack() as exits:
        worker = (await machines(stack, exits))[0]
        (await worker.run(["touch", "/tmp/enough"])).check("ending the job")
    await until_deleted(stack)


SAVING = """
import pathlib, signal, sys, time
def save(*_):
    time.sleep(1)
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("began", flush=True)
time.sleep(600)
"""
KINDS = {
    "vm": {},
    "slice": {"type_name": "v2-32", "zone": ZONE},
    "queued": {"runtime": "tpu-ubuntu2204-base, queue: true"},
    "controller": {"extra": "controller: {}\n"},
    "instance": {"type_name": "v6e-4", "runtime": "auto, api: compute", "zone": V6E_ZONE},
    "group": {"type_name": "v6e-16", "runtime": "auto, api: compute", "zone": V6E_ZONE},
    "node": {"runtime": "auto, kind: node"},
}
MORE_KINDS = [
    pytest.param(kind, marks=[pytest.mark.soak, *more])
    for kind, more in {
        **dict.fromkeys(("slice", "queued", "controller", "instance", "group"), ()),
        "node": [pytest.mark.tensorflow("2.12.1")],
    }.items()
]


@pytest.mark.parametrize("kind", ["vm", *MORE_KINDS])
@pytest.mark.parametrize(
    "limit", ["max_hours: 0.0001", pytest.param("max_cost: 0.0001", marks=pytest.mark.soak)]
)
async def test_job_is_stopped_before_its_machine_is_deleted_at_a_limit(
    make_stack: MakeStack, tmp_path: Path, events: list[Event], kind: str, limit: str
) -> None:
    options = {**KINDS[kind]}
    extra = options.pop("extra", "")
    stack = make_stack(extra=f"{extra}limits: {{idle: 1h}}\n", **options)
    await stack.up()
    script = tmp_path / "job" / "save.py"
    script.parent.mkdir()
    script.write_text(SAVING, "utf-8")
    record = await stack.submit(script, check=False)
    following = asyncio.ensure_future(stack.follow(record))
    await async_until(lambda: "began" in log_of(events, 1), "the job handling signals")
    changed = make_stack(name=stack.stack.name, extra=f"{extra}limits: {{{limit}}}\n", **options)
    await changed.up()
    await until_deleted(stack)
    assert await following == 124
    (job,) = await stack.jobs()
    assert (job.status.state, job.status.exit_code) == ("timed_out", 124)
    assert limit.partition(":")[0] in job.status.detail
    assert b"saved" in await stack.store.get_bytes(record.log_name(0))
    explanation = await stack.explain(record)
    assert explanation.status == job.status
    assert explanation.failure is not None
    assert explanation.failure.name == "limit"
    assert await stack.follow(record, show=False) == 124
    assert (await stack.down(delete_bucket=True)).leaks == ()


@pytest.mark.soak
async def test_max_hours_deletes_node_despite_running_job(
    make_stack: MakeStack, tmp_path: Path
) -> None:
    stack = make_stack(extra="limits: {max_hours: 0.008, idle: null}\n")  # 29 seconds
    await stack.up()
    async with AsyncExitStack() as exits:
        worker = (await machines(stack, exits))[0]
        settings = await watchdog_settings(worker)
        assert settings["max_seconds"] == pytest.approx(28.8)
        with pytest.raises(Exception):  # noqa: B017 - the connection drops with the machine
            (await worker.run(["sleep", "600"])).check("staying logged in")
    await until_deleted(stack)


async def test_user_startup_script_runs_with_watchdog(make_stack: MakeStack) -> None:
    stack = make_stack(extra="limits: {idle: 1h}\n")
    text = stack.stack_file.read_text("utf-8")
    stack.stack_file.write_text(text.replace("tpu: {", "tpu: {startup_script: begin.sh, "), "utf-8")
    (stack.stack_file.parent / "begin.sh").write_text("echo $0 > /tmp/began\n", "utf-8")
    await stack.up()
    async with AsyncExitStack() as exits:
        worker = (await machines(stack, exits))[0]

        async def probe() -> bytes | None:
            return (await worker.run(["cat", "/tmp/began"])).stdout or None

        assert b"startup-script" in await async_until(probe, "the startup script having run")
        state = await prepared(stack, worker)
        assert not state.was_started
        assert state.failure == ""
    await stack.down(delete_bucket=True)


async def test_missing_watchdog_is_started_over_ssh(make_stack: MakeStack) -> None:
    stack = make_stack(extra="limits: {idle: 1h}\n")
    await stack.up()
    async with AsyncExitStack() as exits:
        worker = (await machines(stack, exits))[0]
        # Two watchdogs if the login happened before the startup script ran.
        read = (
            "import glob, json; "
            "print(*(json.load(open(one))['pid'] for one in glob.glob('../*/.tpuctl/watchdog/*n')))"
        )
        stop = f'kill $(python3 -c "{read}")'
        (await worker.run(["sh", "-c", stop])).check("stopping the watchdog")

        async def probe() -> bool | None:
            return (await prepared(stack, worker)).was_started or None

        await async_until(probe, "the watchdog being started")
        assert not (await prepared(stack, worker)).was_started
    await stack.down(delete_bucket=True)


@pytest.mark.soak
async def test_running_watchdog_gets_new_limits(make_stack: MakeStack) -> None:
    stack = make_stack(extra="limits: {idle: 1h}\n")
    await stack.up()
    await set_limits(make_stack, stack, "idle: 5s")
    await until_deleted(stack)


async def test_machines_test_bucket_access(
    make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = make_stack(extra="limits: {idle: 1h}\n")
    await stack.up()
    messages: list[str] = []
    async with AsyncExitStack() as exits:
        transports = await machines(stack, exits)
        states = await prepare_machines(
            transports, stack.stack.bucket, messages.append, has_watchdog=True
        )
        assert {worker: state.was_started for worker, state in states.items()} == {0: False}
        assert messages == []
        assert [info.name for info in await stack.store.list("tpuctl/bundles/")] == []
        monkeypatch.setattr("tpuctl.flows.stack.up.IAM_TIMEOUT_SECONDS", 1.0)
        with pytest.raises(Denied, match="no-such-bucket-anywhere"):
            await prepare_machines(
                transports, "no-such-bucket-anywhere", messages.append, has_watchdog=False
            )
        assert any("waiting for the machine's access" in message for message in messages)
        # An account that is deleted and created again is another one, for which there is no wait.
        monkeypatch.setattr("tpuctl.flows.stack.up.NEW_ACCOUNT_SECONDS", 0.0)
        iam, account = stack.cloud.client("iam"), stack.stack.service_account
        project = f"projects/{stack.stack.project}"
        iam.delete_service_account(request={"name": f"{project}/serviceAccounts/{account}"})
        new = {"name": project, "account_id": account.partition("@")[0]}
        iam.create_service_account(request=new)
        monkeypatch.setattr("tpuctl.flows.stack.up.IAM_TIMEOUT_SECONDS", 60.0)
        with pytest.raises(Denied, match="service account was deleted") as caught:
            await prepare_machines(
                transports, stack.stack.bucket, messages.append, has_watchdog=False
            )
        assert "    tpuctl down" in caught.value.diagnostics[0].hint
    await stack.down(delete_bucket=True)


@pytest.mark.soak
async def test_login_on_one_worker_keeps_slice_alive(make_stack: MakeStack) -> None:
    """A login on worker 3 keeps the whole slice."""
    slice_of_four = {"type_name": "v2-32", "zone": "europe-west4-a"}
    stack = make_stack(extra="limits: {idle: 1h}\n", **slice_of_four)
    await stack.up()
    async with AsyncExitStack() as exits:
        transports = await machines(stack, exits)
        async with transports[3].stream(["sh", "-c", "sleep 12; echo stayed"]) as stream:
            await set_limits(make_stack, stack, "idle: 5s", **slice_of_four)
            assert b"".join([chunk async for chunk in stream.chunks()]) == b"stayed\n"
        assert len(await nodes(stack)) == 1
    await until_deleted(stack)
    with pytest.raises(NotFound):
        await stack.node()


async def test_limits_count_all_nodes_of_a_stack(make_stack: MakeStack) -> None:
    stack = make_stack(extra="limits: {max_hours: 2, idle: 40s}\n")  # checked each 10 s
    await stack.up()
    ledger = LedgerObject.of(stack.stack, stack.cloud)

    async def reported(count: int) -> None:
        async def probe() -> bool | None:
            return len((await ledger.read()).periods) == count or None

        await async_until(probe, "the machine's report")

    await reported(1)
    (node,) = await nodes(stack)
    client = stack.cloud.client("tpu")
    await stack.cloud.call("the node", client.delete_node, {"name": node.name})
    await until_deleted(stack)
    await stack.up()
    await reported(2)
    first, second = (await ledger.read()).periods
    (node,) = await nodes(stack)
    assert second.started == node.create_time.replace(microsecond=0)
    assert first.ended is not None and first.per_hour == pytest.approx(4.505)

    def with_hours(before: Ledger) -> Ledger:
        earlier = {"started": first.started - timedelta(hours=2), "ended": first.started}
        return before.with_period(first.model_copy(update=earlier))

    await ledger.update(with_hours)
    await until_deleted(stack)
    with pytest.raises(TimedOut, match=r"2(\.\d+)? of 2 hours"):
        await stack.up()
    await stack.up(new_limits=True)
    snapshot = await stack.snapshot()
    assert snapshot.spending is not None and snapshot.spending.hours < 1
    await stack.down()
    assert all(period.ended is not None for period in (await ledger.read()).periods)
    assert (await stack.down(delete_bucket=True)).leaks == ()


async def test_stacks_of_a_project_share_a_budget(make_stack: MakeStack) -> None:
    stack = make_stack(extra="limits: {budget: 300/month, idle: 40s}\n")  # checked each 10 s
    await stack.up()
    ledger = LedgerObject.of_budget(stack.stack, stack.cloud)

    async def probe() -> bool | None:
        return bool((await ledger.read()).periods) or None

    await async_until(probe, "the machine's report")
    (period,) = (await ledger.read()).periods
    assert (period.stack, period.user) == (stack.stack.name, stack.stack.user)
    others = {"stack": "gpt", "user": "anna", "last_report": None, "per_hour": 1e6}
    await ledger.update(lambda before: before.with_period(period.model_copy(update=others)))
    await until_deleted(stack)
    with pytest.raises(TimedOut, match=r"of \$300.00 in .*: gpt \(anna\)"):
        await stack.up()
    down = await stack.down(delete_bucket=True)
    assert down.leaks == ()
    left_alone = {item.address: item.reason for item in down.remaining if item.state == "kept"}
    assert "gcloud storage rm" in left_alone[f"budget/{stack.stack.names.budget_bucket}"]
    bucket = stack.cloud.client("storage").bucket(stack.stack.names.budget_bucket)
    await stack.cloud.call("the budget", bucket.delete, force=True)
