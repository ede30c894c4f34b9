"""Jobs on TPUs that Compute Engine sells: one instance, or a managed instance group."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.locations import V6E_ZONE
from tests.support.polling import async_until
from tests.support.recovery_jobs import COUNTING, inject_fault, log_of, script
from tests.support.worker_http import GREETING, read_greeting, serve_greeting
from tpuctl.api import Tpuctl
from tpuctl.flows.jobs.attempts import read_attempts
from tpuctl.flows.machines.forward import PortMapping
from tpuctl.flows.machines.inventory import list_nodes
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.model.events import CommandOutput, Event, WarningIssued
from tpuctl.model.workers.copy_path import parse_copy

MakeStack = Callable[..., Tpuctl]
SPOT = "auto, api: compute, capacity: spot"
ENVIRONMENT = """
import json, os
names = ("TPUCTL_", "TPU_")
print(json.dumps({name: os.environ[name] for name in os.environ if name.startswith(names)}))
raise SystemExit(3)
"""

EXPECTED = {
    "TPUCTL_WORKER": "0",
    "TPUCTL_TYPE": "v6e-4",
    "TPUCTL_CHIPS": "4",
    "TPU_WORKER_ID": "0",
    "TPU_WORKER_HOSTNAMES": "",
    "TPU_ACCELERATOR_TYPE": "v6e-4",
    "TPU_TOPOLOGY": "2x2",
}
ASK = """
import os, urllib.request
url = f"http://{os.environ['GCE_METADATA_HOST']}/computeMetadata/v1/instance/attributes/worker-id"
asked = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
print(urllib.request.urlopen(asked).read().decode())
"""


@pytest.fixture
async def instance(make_stack: MakeStack) -> AsyncIterator[Tpuctl]:
    stack = make_stack(type_name="v6e-4", runtime="auto, api: compute", zone=V6E_ZONE)
    await stack.up()
    yield stack
    assert (await stack.down(delete_bucket=True)).leaks == ()


async def test_job_on_instance_returns_its_exit_code(instance: Tpuctl, events: list[Event]) -> None:
    record = await instance.submit(script(instance, ENVIRONMENT), check=False)
    assert await instance.follow(record) == 3
    node = await instance.node()
    variables = json.loads(await instance.store.get_bytes(record.log_name(0)))
    assert {name: variables[name] for name in variables if name in EXPECTED} == {
        **EXPECTED,
        "TPU_WORKER_HOSTNAMES": node.inner_addresses[0],
    }
    assert (await instance.up()).plan.is_empty


@asynccontextmanager
async def spot(
    make_stack: MakeStack, local_cloud: LocalCloud, type_name: str
) -> AsyncIterator[Tpuctl]:
    """A spot stack that is up, and taken down afterwards."""
    stack = make_stack(type_name=type_name, runtime=SPOT, zone=V6E_ZONE)
    await stack.up()
    yield stack
    await asyncio.to_thread(remote_control.remove_all_faults, local_cloud)
    assert (await stack.down(delete_bucket=True)).leaks == ()


@pytest.fixture
async def spot_instance(make_stack: MakeStack, local_cloud: LocalCloud) -> AsyncIterator[Tpuctl]:
    async with spot(make_stack, local_cloud, "v6e-4") as stack:
        yield stack


async def test_job_of_preempted_instance_resumes_with_its_output(
    spot_instance: Tpuctl, local_cloud: LocalCloud, events: list[Event]
) -> None:
    """Compute Engine deletes the instance; only an operation tells that it was preempted."""
    record = await spot_instance.submit(script(spot_instance, COUNTING), ["30", "0.05"])
    following = asyncio.ensure_future(spot_instance.follow(record))
    await async_until(lambda: "step 13\n" in log_of(events, 1), "step 13")
    first = await spot_instance.node()
    await inject_fault(local_cloud, "preempt", node=first.name)
    assert await asyncio.wait_for(following, 120) == 0
    again = await spot_instance.node()
    assert again.id != first.id
    (attempt,) = await read_attempts(spot_instance.store, record)
    assert (attempt.number, attempt.verdict.kind) == (2, "preemption")
    begun = int(log_of(events, 2).splitlines()[0].removeprefix("attempt 2 from "))
    assert begun >= 13


async def test_deleted_instance_ends_the_job(spot_instance: Tpuctl, events: list[Event]) -> None:
    record = await spot_instance.submit(script(spot_instance, COUNTING), ["300", "0.05"])
    following = asyncio.ensure_future(spot_instance.follow(record))
    await async_until(lambda: "step 3\n" in log_of(events, 1), "step 3")
    node = await spot_instance.node()
    cloud = spot_instance.cloud
    await cloud.call(
        node.name,
        cloud.client("instances").delete_unary,
        project="local-project",
        zone=node.zone,
        instance=node.name,
    )
    assert await asyncio.wait_for(following, 200) != 0
    assert await read_attempts(spot_instance.store, record) == []


@pytest.fixture
async def group(make_stack: MakeStack, local_cloud: LocalCloud) -> AsyncIterator[Tpuctl]:
    async with spot(make_stack, local_cloud, "v6e-16") as stack:
        yield stack


async def test_workers_of_a_group_are_numbered_as_their_machines_are(
    group: Tpuctl, events: list[Event]
) -> None:
    async with group.connections() as transports:
        assert sorted(transports) == [0, 1, 2, 3]
        for worker, transport in transports.items():
            done = await transport.run(["python3", "-S", "-I", "-c", ASK])
            assert done.stdout.decode().strip() == str(worker)


@pytest.mark.soak
async def test_job_of_preempted_group_resumes_with_its_output(
    group: Tpuctl, local_cloud: LocalCloud, events: list[Event]
) -> None:
    record = await group.submit(script(group, COUNTING), ["30", "0.1"])
    assert record.workers == (0, 1, 2, 3)
    following = asyncio.ensure_future(group.follow(record))
    await async_until(lambda: "step 5\n" in log_of(events, 1), "step 5")
    first = await group.node()
    await inject_fault(local_cloud, "preempt", node=first.instances[1])
    assert await asyncio.wait_for(following, 180) == 0
    again = await group.node()
    assert again.id != first.id
    (attempt,) = await read_attempts(group.store, record)
    assert (attempt.number, attempt.verdict.kind) == (2, "preemption")
    for worker in record.workers:
        log = (await group.store.get_bytes(record.at(2).log_name(worker))).decode()
        assert int(log.splitlines()[0].removeprefix("attempt 2 from ")) >= 1
        assert log.endswith("counted\n")


@pytest.mark.parametrize(
    "type_name",
    ["v6e-4", pytest.param("v6e-16", marks=pytest.mark.soak)],
    ids=["instance", "group"],
)
@pytest.mark.usefixtures("startup_scripts")
async def test_idle_machines_delete_their_slice(make_stack: MakeStack, type_name: str) -> None:
    """By their own account: `down` then finds nothing that is charged."""
    stack = make_stack(
        type_name=type_name,
        runtime="auto, api: compute",
        zone=V6E_ZONE,
        extra="limits: {idle: 5s}\n",
    )
    await stack.up()

    async def is_gone() -> bool | None:
        return True if not await list_nodes(stack.cloud, stack.stack) else None

    await async_until(is_gone, "the slice deleting itself")
    down = await stack.down(delete_bucket=True)
    assert down.leaks == ()


async def test_workers_are_reached_through_iap_by_their_names(
    make_stack: MakeStack, events: list[Event], tmp_path: Path
) -> None:
    stack = make_stack(
        type_name="v6e-16",
        runtime="auto, api: compute",
        zone=V6E_ZONE,
        extra="network: {ssh: iap}\n",
    )
    await stack.up()
    node = await stack.node()
    assert node.addresses == node.inner_addresses, "without external addresses"
    results = await stack.run_on_workers("hostname")
    assert [result.exit_code for result in results] == [0] * 4
    names = {event.data.decode().strip() for event in events if isinstance(event, CommandOutput)}
    assert names == {*node.instances}
    (tmp_path / "sent").write_bytes(b"bytes")
    await stack.copy(parse_copy([str(tmp_path / "sent"), "2:there"], all_workers=False))
    command = await stack.ssh_command(2, "cat there; hostname; exit 9")
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 9, done.stderr
    assert done.stdout.removeprefix("bytes").strip() in node.instances

    async with serve_greeting(stack) as port:
        events.clear()
        async with stack.forward_ports([PortMapping(port)], 0):
            assert await read_greeting(events) == GREETING

    hosts = await stack.ssh_hosts()
    configuration = tmp_path / "config"
    configuration.write_text("\n".join(map(str, hosts)), "utf-8")
    ssh = ["ssh", "-F", str(configuration), f"{stack.stack.name}-3", "hostname"]
    done = await asyncio.to_thread(subprocess.run, ssh, capture_output=True, text=True, timeout=60)
    async with stack.connections() as transports:
        expected = await transports[3].run(["hostname"])
    assert done.stdout == expected.stdout.decode(), done.stderr
    assert (await stack.down(delete_bucket=True)).leaks == ()


UNATTENDED = """
import os, time
print("attempt", os.environ["TPUCTL_ATTEMPT"], flush=True)
while os.environ["TPUCTL_ATTEMPT"] == "1":
    time.sleep(0.1)
"""


@pytest.mark.soak
@pytest.mark.parametrize("type_name", ["v6e-4", "v6e-16"], ids=["instance", "group"])
@pytest.mark.usefixtures("startup_scripts")
async def test_controller_recovers_unattended_job(
    make_stack: MakeStack, local_cloud: LocalCloud, events: list[Event], type_name: str
) -> None:
    stack = make_stack(
        type_name=type_name,
        runtime=SPOT,
        zone=V6E_ZONE,
        extra="controller: {}\nlimits: {idle: 10m}\n",
    )
    await stack.up()
    record = await stack.submit(script(stack, UNATTENDED))
    assert not [event for event in events if isinstance(event, WarningIssued)]

    async def state() -> str:
        return (await stack.jobs())[0].status.state

    async def is_running() -> bool | None:
        return await state() == "running" or None

    async def has_succeeded() -> bool | None:
        return await state() == "succeeded" or None

    await async_until(is_running, "the job running")
    node = await stack.node()
    await inject_fault(local_cloud, "preempt", node=node.instances[-1])
    await async_until(has_succeeded, "the job being recovered", seconds=240)
    (attempt,) = await read_attempts(stack.store, record)
    assert (attempt.number, attempt.verdict.kind) == (2, "preemption")
    assert "controller" in attempt.verdict.by
    assert (await stack.up()).plan.is_empty
    assert (await stack.down(delete_bucket=True)).leaks == ()
