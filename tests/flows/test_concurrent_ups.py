"""The same stack brought up by two programs at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.support.grants import KINDS
from tests.support.projects import Project
from tpuctl.errors import Denied
from tpuctl.local_cloud import remote_control, server_process
from tpuctl.remote.keys import default_key


@pytest.fixture
def slow_cloud(null_cloud: server_process.LocalCloud) -> Iterator[server_process.LocalCloud]:
    """A cloud with slow creations, during which names are reserved but resources not visible."""
    remote_control.change_settings(null_cloud, pace="quick")
    yield null_cloud
    remote_control.change_settings(null_cloud, pace="instant", policies=[])


STACKS = {
    "vm": ("data_disks: [{size_gb: 10}]", "controller: {}\nlimits: {max_hours: 5}"),
    "queued": ("queue: true", "network: {ssh: internal}"),
    "node": ("kind: node, runtime: '2.12.0', data_disks: [{size_gb: 10}]", ""),
}


@pytest.mark.parametrize("kind", STACKS)
async def test_concurrent_ups_succeed(
    slow_cloud: server_process.LocalCloud, project: Project, kind: str
) -> None:
    """Both plan while nothing exists, not even the project."""
    if kind == "queued":  # so that the network is created too
        remote_control.change_settings(slow_cloud, policies=["compute.skipDefaultNetworkCreation"])
    first = project.stack(*STACKS[kind])
    key = default_key(first.folder).path  # of a second person
    tpu, extra = STACKS[kind]
    second = project.stack(tpu, f"{extra}\naccess: {{ssh_key: {key}}}", name=first.stack.stack.name)
    plans = [await bench.stack.plan() for bench in (first, second)]
    await asyncio.gather(first.stack.provision(plans[0]), second.stack.provision(plans[1]))
    remote_control.change_settings(slow_cloud, pace="instant")
    for bench in (first, second):  # both SSH keys are authorized
        assert (await bench.stack.plan()).plan.is_empty
    assert (await first.stack.down(delete_bucket=True)).leaks == ()


@pytest.mark.parametrize("kind", KINDS)
async def test_up_adopts_what_another_has_created_since_its_plan(
    project: Project, kind: str
) -> None:
    tpu, type_name = KINDS[kind]
    bench = project.stack(tpu, type_name=type_name)
    late = bench.reopen()
    plan = await late.plan()
    await bench.provision()
    created = await bench.stack.node()
    await late.provision(plan)
    assert (await bench.stack.node()).id == created.id
    assert (await bench.stack.down(delete_bucket=True)).leaks == ()


DENIED = {
    "*ListQueuedResources": "Permission 'tpu.queuedResources.list' denied on resource (or it may "
    "not exist).",
    "Firewalls/Get": "Permission denied on resource project some-project.",
}


@pytest.mark.parametrize("method", DENIED)
@pytest.mark.parametrize("times", [1, "unlimited"])
async def test_denied_read_is_retried_for_new_project(
    null_cloud: server_process.LocalCloud, project: Project, method: str, times: int | str
) -> None:
    """Google denies reads in a project that does not exist yet, and may be created meanwhile."""
    bench = project.stack()
    await bench.provision()
    text = DENIED[method]
    fault = remote_control.add_fault(
        null_cloud,
        "deny",
        method=method,
        project=project.id,
        times=times,
        text=text,
    )
    if times == "unlimited":
        with pytest.raises(Denied):
            await bench.reopen().plan()
    else:
        assert (await bench.reopen().plan()).plan.is_empty
        assert remote_control.fault(null_cloud, fault["id"])["applied"] == 1
