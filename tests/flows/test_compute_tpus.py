"""TPUs that Compute Engine sells: their life from `plan` to `down`, on the local cloud."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.projects import numbers, provision, use_cloud
from tpuctl.api import Tpuctl
from tpuctl.emulator.client import remote_control
from tpuctl.emulator.client.server_process import LocalCloud
from tpuctl.flows.inventory import list_resources
from tpuctl.model.events import Event
from tpuctl.model.inventory import InventoryItem

ZONE = "us-east5-a"
MakeStack = Callable[..., Tpuctl]
pytestmark = pytest.mark.long


@pytest.fixture
def cloud(null_cloud: LocalCloud) -> Iterator[LocalCloud]:
    """The local cloud, whose faults are removed afterwards."""
    yield null_cloud
    remote_control.remove_all_faults(null_cloud)


@pytest.fixture
def make(
    cloud: LocalCloud, tmp_path: Path, events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> MakeStack:
    use_cloud(cloud, monkeypatch)

    def make(type_name: str = "v6e-4", *, tpu: str = "", extra: str = "") -> Tpuctl:
        name = f"compute-{next(numbers)}"
        path = tmp_path / f"{name}.yaml"
        path.write_text(
            f"stack: {name}\nproject: {{id: local-project}}\n"
            f"tpu: {{type: {type_name}, api: compute, zones: [{ZONE}]{tpu}}}\n{extra}",
            "utf-8",
        )
        return Tpuctl(path, cloud="local", emit=events.append)

    return make


async def items(stack: Tpuctl) -> dict[str, InventoryItem]:
    """What the stack has in zones and regions, by address."""
    found = await list_resources(stack.cloud, "local-project", stack=stack.stack.name)
    return {item.address: item for item in found if item.zone}


async def test_instance_from_plan_to_down(make: MakeStack) -> None:
    stack = make()
    name = stack.stack.names.node
    plan = (await stack.plan()).plan
    assert "ct6e-standard-4t" in plan.change(f"instance/{name}").because
    await provision(stack)
    (item,) = [item for item in (await items(stack)).values() if item.kind == "instance"]
    assert (item.state, item.detail, item.zone) == ("READY", "v6e-4", ZONE)
    assert item.node is not None
    assert item.node.instances == (name,)
    assert len(item.node.addresses) == len(item.node.ssh_ports) == 1
    again = await stack.plan()
    assert again.plan.is_empty, [change for change in again.plan if change.is_work]
    down = await stack.down()
    assert not down.leaks
    assert await items(stack) == {}


async def test_group_from_plan_to_down(make: MakeStack) -> None:
    stack = make("v6e-16")
    name = stack.stack.names.node
    await provision(stack)
    found = await items(stack)
    group = found[f"group/{ZONE}/{name}"]
    assert (group.state, group.detail) == ("READY", "v6e-16")
    assert group.node is not None
    assert len(group.node.instances) == 4
    assert {f"template/us-east5/{name}", f"workload-policy/us-east5/{name}"} <= found.keys()
    again = await stack.plan()
    assert again.plan.is_empty, [change for change in again.plan if change.is_work]
    down = await stack.down()
    assert not down.leaks
    assert await items(stack) == {}
