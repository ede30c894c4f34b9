"""Zone failover: an error of a zone or a region tries the next zone, any other error stops."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.projects import provision, use_cloud
from tpuctl.api import Tpuctl
from tpuctl.errors import Conflict, Denied, NoCapacity, QuotaExceeded
from tpuctl.flows.machines.controller import find_controller
from tpuctl.flows.machines.inventory import list_resources
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.model.events import Event, Note, StepStarted
from tpuctl.model.status.inventory import InventoryItem, find_orphaned

TYPE = "v5litepod-8"
FIRST, NEIGHBOR, FAR = "us-west4-a", "us-west4-b", "europe-west4-b"
MakeZoned = Callable[..., Tpuctl]


@pytest.fixture
def make(
    null_cloud: LocalCloud, tmp_path: Path, events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> MakeZoned:
    use_cloud(null_cloud, monkeypatch)

    def make(name: str, *zones: str, extra: str = "") -> Tpuctl:
        path = tmp_path / f"{name}.yaml"
        path.write_text(
            f"stack: {name}\nproject: {{id: local-project}}\n"
            f"tpu: {{type: {TYPE}, runtime: v2-alpha-tpuv5-lite, zones: [{', '.join(zones)}]}}\n"
            f"bucket: {{allow_egress: true}}\n{extra}",
            "utf-8",
        )
        return Tpuctl(path, cloud="local", emit=events.append)

    return make


async def zonal(stack: Tpuctl) -> dict[str, str]:
    """The stack's zonal resources, by kind and zone."""
    found: list[InventoryItem] = await list_resources(
        stack.cloud, "local-project", stack=stack.stack.name
    )
    return {
        f"{resource.kind} {resource.zone}": resource.state for resource in found if resource.zone
    }


async def watchdogs(stack: Tpuctl, controller_zone: str, zone: str) -> dict[str, Any]:
    """The settings of the watchdogs of the stack's node and controller."""
    names, project = stack.stack.names, stack.stack.project
    node = await stack.cloud.call(
        "node",
        stack.cloud.client("tpu").get_node,
        {"name": f"projects/{project}/locations/{zone}/nodes/{names.node}"},
    )
    controller = await stack.cloud.call(
        "controller",
        stack.cloud.client("instances").get,
        project=project,
        zone=controller_zone,
        instance=names.controller,
    )
    key = "tpuctl-watchdog"
    metadata = {item.key: item.value for item in controller.metadata.items}
    return {"node": json.loads(node.metadata[key]), "controller": json.loads(metadata[key])}


def zones_tried(events: list[Event]) -> list[str]:
    """The steps that created a node, in order."""
    steps = [event for event in events if isinstance(event, StepStarted)]
    return [step.address for step in steps if step.action == "create" and "node" in step.address]


async def test_stockout_tries_next_zone(
    make: MakeZoned, cloud: LocalCloud, events: list[Event]
) -> None:
    stack = make("stocked-out", FIRST, NEIGHBOR)
    fault = remote_control.add_fault(cloud, "stockout", zone=FIRST)
    prepared = await provision(stack)
    assert remote_control.fault(cloud, fault["id"])["applied"] == 1
    assert prepared.stack.zone == NEIGHBOR
    assert await zonal(stack) == {f"node {NEIGHBOR}": "READY"}
    notes = " ".join(event.text for event in events if isinstance(event, Note))
    assert FIRST in notes
    assert NEIGHBOR in notes

    again = await stack.plan()  # although the first zone has capacity now
    assert again.stack.zone == NEIGHBOR
    assert again.plan.is_empty
    assert (await stack.node()).zone == NEIGHBOR
    assert not (await stack.down(delete_bucket=True)).leaks
    assert await zonal(stack) == {}


async def test_controller_stays_when_node_moves(make: MakeZoned, cloud: LocalCloud) -> None:
    """It works with a TPU VM in any zone, and may be what moves it."""
    stack = make("moving", FIRST, NEIGHBOR, extra="controller: {machine_type: n2-standard-2}\n")
    remote_control.add_fault(cloud, "stockout", zone=FIRST, type="v5*")
    await provision(stack)
    machines = {f"node {NEIGHBOR}": "READY", f"controller {FIRST}": "RUNNING"}
    everything = await zonal(stack)
    assert {key: everything[key] for key in everything if not key.startswith("disk")} == machines
    assert (await stack.plan()).plan.is_empty
    assert (await find_controller(stack.stack.in_zone(NEIGHBOR), stack.cloud)).zone == FIRST
    watched = await watchdogs(stack, controller_zone=FIRST, zone=NEIGHBOR)
    controller = f"/zones/{FIRST}/instances/{stack.stack.names.controller}"
    node = f"/locations/{NEIGHBOR}/nodes/{stack.stack.names.node}"
    for machine, order in (("node", (controller, node)), ("controller", (node, controller))):
        assert watched[machine]["tpu"].endswith(node), "each finds the TPU"
        ends = zip(watched[machine]["delete"], order, strict=True)
        assert all(url.endswith(end) for url, end in ends), "and deletes both, itself last"
    of_stack = [item for item in await stack.orphans() if item.stack == "moving"]
    assert find_orphaned(of_stack) == []
    assert not (await stack.down(delete_bucket=True)).leaks
    assert await zonal(stack) == {}


async def test_region_quota_skips_its_other_zones(
    make: MakeZoned, cloud: LocalCloud, events: list[Event]
) -> None:
    stack = make("out-of-quota", FIRST, NEIGHBOR, FAR)
    remote_control.add_fault(cloud, "quota", region="us-west4", times="unlimited")
    await provision(stack)
    assert (
        zones_tried(events) == [f"node/{stack.stack.names.node}"] * 2
    )  # the other zone of the region was not tried
    assert await zonal(stack) == {f"node {FAR}": "READY"}
    await stack.down(delete_bucket=True)


async def test_error_lists_reason_of_every_zone(make: MakeZoned, cloud: LocalCloud) -> None:
    stack = make("nowhere", FIRST, NEIGHBOR, extra="controller: {machine_type: n2-standard-2}\n")
    remote_control.add_fault(cloud, "stockout", type="v5*", times="unlimited")
    with pytest.raises(NoCapacity) as caught:
        await provision(stack)
    assert FIRST in str(caught.value)
    assert NEIGHBOR in str(caught.value)
    assert caught.value.diagnostics[0].hint
    assert await zonal(stack) == {}  # the controller of the last zone is deleted too
    await stack.down(delete_bucket=True)


async def test_quota_alone_keeps_its_exit_code(make: MakeZoned, cloud: LocalCloud) -> None:
    stack = make("poor", FIRST, NEIGHBOR)
    remote_control.add_fault(cloud, "quota", zone=FIRST)
    remote_control.add_fault(cloud, "quota", zone=NEIGHBOR)
    with pytest.raises(QuotaExceeded) as caught:
        await provision(stack)
    assert caught.value.exit_code == 76
    await stack.down(delete_bucket=True)


CREATE = "google.cloud.tpu.v2.Tpu/CreateNode"
# Errors of single zones, as matched by skypilot 0.14.1.
OF_A_ZONE = {
    "location": (
        "PERMISSION_DENIED",
        f"Location {FIRST} is not found or access is unauthorized.",
        "gcloud org-policies describe gcp.resourceLocations",
    ),
    "type": (
        "INVALID_ARGUMENT",
        f'CloudTpu received an invalid AcceleratorType, "{TYPE}" for zone "{FIRST}". '
        'Valid values are "v2-8, ".',
        f"tpuctl zones {TYPE}",
    ),
}


@pytest.mark.parametrize("name", OF_A_ZONE)
async def test_closed_zone_or_missing_type_tries_next_zone(
    make: MakeZoned, cloud: LocalCloud, name: str
) -> None:
    code, text, _ = OF_A_ZONE[name]
    stack = make(f"closed-{name}", FIRST, NEIGHBOR)
    fault = remote_control.add_fault(
        cloud, "error", method=CREATE, zone=FIRST, code=code, text=text
    )
    assert (await provision(stack)).stack.zone == NEIGHBOR
    assert remote_control.fault(cloud, fault["id"])["applied"] == 1
    await stack.down(delete_bucket=True)


async def test_combined_error_keeps_hints_of_each_zone(make: MakeZoned, cloud: LocalCloud) -> None:
    zones = (FIRST, NEIGHBOR, FAR)
    stack = make("advised", *zones)
    for zone, (code, text, _) in zip(zones, OF_A_ZONE.values(), strict=False):
        remote_control.add_fault(cloud, "error", method=CREATE, zone=zone, code=code, text=text)
    remote_control.add_fault(cloud, "quota", zone=FAR)
    with pytest.raises(QuotaExceeded) as caught:
        await provision(stack)
    hint = caught.value.diagnostics[0].hint
    for zone, command in zip(
        zones, [command for *_, command in OF_A_ZONE.values()] + ["tpuctl quota"], strict=True
    ):
        part = hint.partition(f"For {zone}:\n")[2].partition("\nFor ")[0]
        assert f"    {command}" in part, zone
    await stack.down(delete_bucket=True)


async def test_zone_independent_error_stops_failover(
    make: MakeZoned, cloud: LocalCloud, events: list[Event]
) -> None:
    stack = make("denied", FIRST, NEIGHBOR)
    remote_control.add_fault(cloud, "deny", method="google.cloud.tpu.v2.Tpu/CreateNode")
    with pytest.raises(Denied):
        await provision(stack)
    assert len(zones_tried(events)) == 1
    await stack.down(delete_bucket=True)


async def test_abandoned_resources_are_deleted_by_up_and_down(
    make: MakeZoned, cloud: LocalCloud
) -> None:
    """As after a crash during failover: the stack has resources in several zones."""
    first = make("abandoned", FIRST)
    await provision(first)
    (tmp := first.stack_file).write_text(
        tmp.read_text("utf-8").replace(f"[{FIRST}]", f"[{NEIGHBOR}, {FIRST}]"), "utf-8"
    )
    both = Tpuctl(tmp, cloud="local")
    prepared = await both.plan(NEIGHBOR)
    await both.provision(prepared)
    assert await zonal(both) == {f"node {NEIGHBOR}": "READY"}
    await both.down(delete_bucket=True)
    assert await zonal(both) == {}


async def test_node_in_unlisted_zone_is_not_changed(make: MakeZoned) -> None:
    stack = make("unlisted", FIRST)
    await provision(stack)
    stack.stack_file.write_text(
        stack.stack_file.read_text("utf-8").replace(f"[{FIRST}]", f"[{NEIGHBOR}]"), "utf-8"
    )
    moved = Tpuctl(stack.stack_file, cloud="local")
    with pytest.raises(Conflict, match=FIRST):
        await provision(moved)
    assert await zonal(moved) == {f"node {FIRST}": "READY"}
    assert not (await moved.down(delete_bucket=True)).leaks
    assert await zonal(moved) == {}
