"""TPUs that Compute Engine sells: their life from `plan` to `down`, on the local cloud."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.locations import V5P_ZONE
from tests.support.polling import async_until
from tests.support.projects import Project, numbers, provision, use_cloud
from tests.support.queued import in_background
from tpuctl.api import Tpuctl
from tpuctl.cloud.operations import compute_operation
from tpuctl.errors import Conflict, NoCapacity, NotFound, TpuctlError, Usage
from tpuctl.flows.machines.inventory import list_resources
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.model.events import Event, Note
from tpuctl.model.stack.candidates import Candidate
from tpuctl.model.status.inventory import InventoryItem, find_orphaned
from tpuctl.resources.project.enabled_apis import Services

MakeStack = Callable[..., Tpuctl]
pytestmark = pytest.mark.long


@pytest.fixture
def make(
    cloud: LocalCloud, tmp_path: Path, events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> MakeStack:
    use_cloud(cloud, monkeypatch)

    def make(
        type_name: str = "v6e-4", *, tpu: str = "", zones: str = V5P_ZONE, extra: str = ""
    ) -> Tpuctl:
        name, api = f"compute-{next(numbers)}", "" if "api:" in tpu else ", api: compute"
        path = tmp_path / f"{name}.yaml"
        path.write_text(
            f"stack: {name}\nproject: {{id: local-project}}\n"
            f"tpu: {{type: {type_name}{api}, zones: [{zones}]{tpu}}}\n{extra}",
            "utf-8",
        )
        return Tpuctl(path, cloud="local", emit=events.append)

    return make


async def items(stack: Tpuctl) -> dict[str, InventoryItem]:
    """What the stack has in zones and regions, by address."""
    existing = await list_resources(
        stack.cloud,
        "local-project",
        stack=stack.stack.name,
        on_error=lambda *_: None,  # the TPU API is not enabled
    )
    return {item.address: item for item in existing if item.zone}


async def test_instance_from_plan_to_down(make: MakeStack) -> None:
    stack = make()
    name = stack.stack.names.node
    plan = (await stack.plan()).plan
    assert "ct6e-standard-4t" in plan.change(f"instance/{name}").because
    await provision(stack)
    (item,) = [item for item in (await items(stack)).values() if item.kind == "instance"]
    assert (item.state, item.detail, item.zone) == ("READY", "v6e-4", V5P_ZONE)
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
    existing = await items(stack)
    group = existing[f"group/{V5P_ZONE}/{name}"]
    assert (group.state, group.detail) == ("READY", "v6e-16")
    assert group.node is not None
    assert len(group.node.instances) == 4
    assert {f"template/us-east5/{name}", f"workload-policy/us-east5/{name}"} <= existing.keys()
    again = await stack.plan()
    assert again.plan.is_empty, [change for change in again.plan if change.is_work]
    down = await stack.down()
    assert not down.leaks
    assert await items(stack) == {}


def stockout(cloud: LocalCloud, type_name: str, zone: str = V5P_ZONE) -> str:
    """No capacity for an accelerator type of the Cloud TPU API, or for a machine type."""
    fault = remote_control.add_fault(
        cloud, "stockout", zone=zone, type=type_name, times="unlimited"
    )
    return str(fault["id"])


async def test_plan_shows_candidates_in_order_with_their_prices(make: MakeStack) -> None:
    stack = make(tpu=", api: auto, boot_disk: {size_gb: 200}")
    prepared = await stack.plan()
    assert prepared.stack.candidate == Candidate(V5P_ZONE)
    compute = Candidate(V5P_ZONE, "compute")
    assert [*prepared.fallback_costs] == [compute]
    cost = prepared.fallback_costs[compute]
    lines = {line.item: line.per_hour for line in cost.lines}
    assert "$16.00 per month" in str(cost)
    assert lines["boot disk, 200 GB hyperdisk-balanced"] == pytest.approx(200 * 0.08 / 730)
    [tpu_line] = [line for line in prepared.cost.lines if line.item.startswith("node")]
    assert lines[tpu_line.item] == tpu_line.per_hour, "the price is the same at both"


async def test_compute_engine_is_tried_after_stockout_of_cloud_tpu_api(
    make: MakeStack, cloud: LocalCloud, events: list[Event]
) -> None:
    stack = make(tpu=", api: auto")
    stockout(cloud, "v6e-4")
    prepared = await provision(stack)
    assert prepared.stack.candidate == Candidate(V5P_ZONE, "compute")
    assert [item.kind for item in (await items(stack)).values() if item.kind_class.is_tpu] == [
        "instance"
    ]
    notes = " ".join(event.text for event in events if isinstance(event, Note))
    assert f"{V5P_ZONE}: No capacity" in notes
    assert f"Created in {V5P_ZONE} through Compute Engine" in notes
    again = await stack.plan()
    assert again.plan.is_empty, "the TPU stays, although the first candidate has capacity now"
    assert not (await stack.down()).leaks


async def test_cloud_tpu_api_is_tried_after_stockout_of_compute_engine(
    make: MakeStack, cloud: LocalCloud
) -> None:
    stack = make("v6e-16", tpu=", api: auto")
    fault = stockout(cloud, "v6e-16")
    await provision(stack)
    remote_control.remove_fault(cloud, fault)
    await stop_machine(stack)
    assert (await stack.plan()).stack.candidate == Candidate(V5P_ZONE, "compute"), "where it was"
    stockout(cloud, "ct6e-standard-4t")
    prepared = await provision(stack)
    assert prepared.stack.candidate == Candidate(V5P_ZONE)
    existing = await items(stack)
    assert [item.kind for item in existing.values()] == ["node"], "the group is gone"


async def stop_machine(stack: Tpuctl) -> None:
    """Stop a machine of the stack's slice."""
    cloud, name = stack.cloud, (await stack.node()).instances[0]
    where: dict[str, Any] = {"project": "local-project", "zone": V5P_ZONE, "instance": name}
    operation = await cloud.call(name, cloud.client("instances").stop_unary, **where)
    await compute_operation(cloud, operation, subject=name, seconds=60)


async def test_refusals_of_both_apis_are_one_error_and_leave_nothing(
    make: MakeStack, cloud: LocalCloud
) -> None:
    stack = make("v6e-16", tpu=", api: auto")
    stockout(cloud, "v6e-16")
    stockout(cloud, "ct6e-standard-4t")
    with pytest.raises(NoCapacity) as caught:
        await provision(stack)
    (diagnostic,) = caught.value.diagnostics
    assert f"{V5P_ZONE}: " in diagnostic.detail
    assert f"{V5P_ZONE} through Compute Engine: " in diagnostic.detail
    assert await items(stack) == {}


async def test_group_in_part_is_deleted_with_one_message(
    make: MakeStack, cloud: LocalCloud
) -> None:
    stack = make("v6e-16")
    fault = remote_control.add_fault(cloud, "partial-group", number=3, times="unlimited")["id"]
    with pytest.raises(NoCapacity) as caught:
        await provision(stack)
    assert remote_control.fault(cloud, fault)["applied"] >= 1
    assert len(caught.value.diagnostics) == 1
    assert await items(stack) == {}


async def test_slices_are_created_together_or_not_at_all(
    make: MakeStack, cloud: LocalCloud
) -> None:
    stack = make("v6e-16", tpu=", slices: 2")
    second = stack.stack.nodes[1]
    remote_control.add_fault(cloud, "partial-group", name=second, number=0, times="unlimited")
    with pytest.raises(NoCapacity):
        await provision(stack)
    assert await items(stack) == {}
    remote_control.remove_all_faults(cloud)
    await provision(stack)
    groups = [item for item in (await items(stack)).values() if item.kind == "group"]
    assert {item.name: item.state for item in groups} == dict.fromkeys(stack.stack.nodes, "READY")


async def test_slices_of_two_networks_are_refused(project: Project) -> None:
    """After a change of the stack file, when one of the slices has to be created again."""
    bench = project.stack("slices: 2, api: compute", type_name="v6e-16", zones=V5P_ZONE)
    await bench.provision()
    network = {"name": "other", "auto_create_subnetworks": True}
    await bench.call("networks", "insert_unary", project=project.id, network_resource=network)
    lost, left = bench.stack.stack.nodes
    await bench.call(
        "instance_group_managers",
        "delete_unary",
        project=project.id,
        zone=V5P_ZONE,
        instance_group_manager=lost,
    )
    with bench.stack.stack_file.open("a", encoding="utf-8") as file:
        file.write("network: {name: other}\n")
    with pytest.raises(Conflict, match="has network default, the stack file says other"):
        await provision(bench.reopen())
    existing = await list_resources(
        bench.stack.cloud,
        project.id,
        stack=bench.stack.stack.name,
        include=lambda kind: kind.is_tpu,
        unused_apis=bench.stack.stack.unused_apis,
    )
    assert {item.name for item in existing} == {left}


async def interrupt_while_waiting(stack: Tpuctl) -> None:
    """Interrupt `up` while it waits for capacity."""

    async def is_waiting() -> bool:
        return any(item.state == "PENDING" for item in (await items(stack)).values())

    async with in_background(provision(stack)):
        await async_until(is_waiting, "the request waiting")


FLEX_START = ", capacity: flex-start, queue: {run_for: 4h}"


@pytest.mark.parametrize(("type_name", "kind"), [("v6e-4", "instance"), ("v6e-16", "group")])
async def test_flex_start_waits_over_interruptions(
    make: MakeStack, cloud: LocalCloud, type_name: str, kind: str
) -> None:
    stack = make(type_name, tpu=FLEX_START)
    fault = stockout(cloud, "ct6e-standard-4t")
    await interrupt_while_waiting(stack)
    plan = (await stack.plan()).plan
    change = plan.change(f"{kind}/{stack.stack.names.node}")
    assert change.fields == ("readiness",)
    remote_control.remove_fault(cloud, fault)
    await provision(stack)
    item = next(item for item in (await items(stack)).values() if item.kind == kind)
    assert (item.state, item.capacity) == ("READY", "flex-start")


@pytest.mark.parametrize("type_name", ["v6e-4", "v6e-16"])
async def test_down_deletes_what_still_waits(
    make: MakeStack, cloud: LocalCloud, type_name: str
) -> None:
    stack = make(type_name, tpu=FLEX_START)
    stockout(cloud, "ct6e-standard-4t")
    await interrupt_while_waiting(stack)
    assert not (await stack.down()).leaks
    assert await items(stack) == {}


async def test_group_is_given_up_at_its_deadline(make: MakeStack, cloud: LocalCloud) -> None:
    stack = make("v6e-16", tpu=", capacity: flex-start, queue: {run_for: 4h, valid_until: 1s}")
    stockout(cloud, "ct6e-standard-4t")
    with pytest.raises(NoCapacity, match="valid_until"):
        await provision(stack)
    assert await items(stack) == {}


async def test_node_of_other_api_that_never_started_is_deleted(
    make: MakeStack, cloud: LocalCloud
) -> None:
    """What an interrupted `up` left, whose stack file then changed."""
    stack = make(tpu=FLEX_START)
    stockout(cloud, "ct6e-standard-4t")
    await interrupt_while_waiting(stack)
    text = stack.stack_file.read_text("utf-8")
    stack.stack_file.write_text(text.replace("api: compute", "api: tpu").replace(FLEX_START, ""))
    changed = Tpuctl(stack.stack_file, cloud="local")
    await provision(changed)
    assert [item.kind for item in (await items(changed)).values()] == ["node"]


@pytest.mark.parametrize(
    ("reservation", "words"),
    [
        ("nowhere", "has no reservation nowhere in us-east5-a"),
        # Whose reservations this project may not read.
        ("projects/other-project/reservations/theirs", "do not exist"),
    ],
)
@pytest.mark.parametrize("type_name", ["v6e-4", "v6e-16"])
async def test_reservation_that_cannot_be_used_is_one_error_and_leaves_nothing(
    make: MakeStack, type_name: str, reservation: str, words: str
) -> None:
    stack = make(type_name, tpu=f", capacity: reserved, reservation: {reservation}")
    with pytest.raises(TpuctlError) as caught:
        await provision(stack)
    (diagnostic,) = caught.value.diagnostics
    assert words in diagnostic.detail
    assert [item for item in (await items(stack)).values() if item.is_billable] == []


async def test_project_without_compute_engine_has_no_reservation(project: Project) -> None:
    tpu = "api: compute, capacity: reserved, reservation: nowhere"
    bench = project.stack(tpu, type_name="v6e-4", zones=V5P_ZONE)
    new_project = {"project_id": project.id}
    await bench.call("projects", "create_project", {"project": new_project})
    with pytest.raises(Usage, match="has no reservation nowhere in us-east5-a"):
        await bench.stack.plan()


async def test_reservation_of_other_project_must_be_shared(
    make: MakeStack, project: Project
) -> None:
    await reserve(make(), "theirs", "ct6e-standard-4t")
    shared = "capacity: reserved, reservation: projects/local-project/reservations/theirs"
    bench = project.stack(f"api: compute, {shared}", type_name="v6e-4", zones=V5P_ZONE)
    with pytest.raises(Usage, match=f"is not shared with project {project.id}"):
        await bench.stack.plan()


async def test_reservation_is_used_by_its_name(make: MakeStack) -> None:
    stack = make(tpu=", capacity: reserved, reservation: ours")
    await reserve(stack, "ours", "ct6e-standard-1t")
    with pytest.raises(Usage, match="is for ct6e-standard-1t, not ct6e-standard-4t"):
        await stack.plan()
    await reserve(stack, "ours", "ct6e-standard-4t")
    await provision(stack)
    (item,) = [item for item in (await items(stack)).values() if item.kind == "instance"]
    assert (item.state, item.capacity) == ("READY", "reserved")


async def reserve(stack: Tpuctl, name: str, machine_type: str) -> None:
    """Create a reservation, replacing an existing one."""
    services = Services(stack.stack, stack.cloud)
    await services.apply(services.diff(await services.observe()), lambda text, progress: None)
    cloud = stack.cloud
    where: dict[str, Any] = {"project": "local-project", "zone": V5P_ZONE}
    client = cloud.client("reservations")
    with contextlib.suppress(NotFound):
        deletion = await cloud.call(name, client.delete_unary, **where, reservation=name)
        await compute_operation(cloud, deletion, subject=name, seconds=60)
    body = {
        "name": name,
        "specific_reservation_required": True,
        "specific_reservation": {
            "count": 1,
            "instance_properties": {"machine_type": machine_type},
        },
    }
    operation = await cloud.call(name, client.insert_unary, **where, reservation_resource=body)
    await compute_operation(cloud, operation, subject=name, seconds=60)


async def test_failed_attempt_in_another_region_leaves_nothing(
    make: MakeStack, cloud: LocalCloud
) -> None:
    """Template and policy are regional, and have the same names there."""
    egress = "bucket: {allow_egress: true}\n"
    stack = make("v6e-16", zones=f"{V5P_ZONE}, us-east5-b, europe-west4-a", extra=egress)
    stockout(cloud, "ct6e-standard-4t")
    stockout(cloud, "ct6e-standard-4t", "us-east5-b")
    prepared = await provision(stack)
    assert prepared.stack.zone == "europe-west4-a"
    places = {item.zone for item in (await items(stack)).values()}
    assert places == {"europe-west4", "europe-west4-a"}


async def test_concurrent_ups_create_one_slice(make: MakeStack) -> None:
    stack = make("v6e-16")
    other = Tpuctl(stack.stack_file, cloud="local")
    await asyncio.gather(provision(stack), provision(other))
    groups = [item for item in (await items(stack)).values() if item.kind == "group"]
    assert [group.state for group in groups] == ["READY"]
    assert (await stack.plan()).plan.is_empty


async def test_key_of_another_computer_is_added_to_every_machine(
    make: MakeStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = make("v6e-16")
    await provision(stack)
    monkeypatch.setenv("TPUCTL_CONFIG_HOME", str(tmp_path / "another"))
    elsewhere = Tpuctl(stack.stack_file, cloud="local")
    change = (await elsewhere.plan()).plan.change(f"group/{stack.stack.names.node}")
    assert change.fields == ("ssh-keys",)
    await provision(elsewhere)
    assert (await elsewhere.plan()).plan.is_empty
    monkeypatch.undo()
    assert (await stack.plan()).plan.is_empty, "the first computer's key is still there"


async def test_lost_machine_recreates_the_slice(make: MakeStack) -> None:
    stack = make("v6e-16")
    await provision(stack)
    before = await stack.node()
    await stop_machine(stack)
    change = (await stack.plan()).plan.change(f"group/{stack.stack.names.node}")
    assert "TERMINATED" in change.because
    await provision(stack)
    after = await stack.node()
    assert after.state == "READY"
    assert after.id != before.id


async def test_slice_of_changed_type_is_not_left_running(make: MakeStack) -> None:
    stack = make("v6e-16")
    await provision(stack)
    text = stack.stack_file.read_text("utf-8")
    stack.stack_file.write_text(text.replace("v6e-16", "v6e-4"), "utf-8")
    changed = Tpuctl(stack.stack_file, cloud="local")
    with pytest.raises(Conflict, match=r"\(v6e-16\), the stack file says 1 x v6e-4"):
        await changed.plan()
    assert not (await changed.down()).leaks
    assert await items(changed) == {}


async def test_parts_of_a_running_group_do_not_look_orphaned(make: MakeStack) -> None:
    stack = make("v6e-16")
    await provision(stack)
    existing = [
        item for item in await stack.orphans(lambda *_: None) if item.stack == stack.stack.name
    ]
    assert find_orphaned(existing) == []
    await stack.cloud.call(
        "the group",
        stack.cloud.client("instance_group_managers").delete_unary,
        project="local-project",
        zone=V5P_ZONE,
        instance_group_manager=stack.stack.names.node,
    )

    async def orphaned() -> set[str]:
        existing = [
            item for item in await stack.orphans(lambda *_: None) if item.stack == stack.stack.name
        ]
        return {each.item.kind for each in find_orphaned(existing)}

    await async_until(
        lambda: _includes(orphaned(), {"template", "workload-policy"}), "both looking orphaned"
    )


async def _includes(kinds: Awaitable[set[str]], expected: set[str]) -> bool:
    return expected <= await kinds


async def test_interrupted_group_is_given_up_by_the_next_up(
    make: MakeStack, cloud: LocalCloud
) -> None:
    """Left alone, it would create its machines as soon as there is capacity."""
    stack = make("v6e-16")
    hold = remote_control.add_fault(
        cloud, "hold", method="InstanceGroupManagers/ListManagedInstances"
    )["id"]
    stockout(cloud, "ct6e-standard-4t")

    async def is_held() -> bool:
        return bool(remote_control.fault(cloud, hold).get("held_calls"))

    async with in_background(provision(stack)):
        await async_until(is_held, "the group being created")
    remote_control.release(cloud, hold)
    remote_control.remove_fault(cloud, hold)
    change = (await stack.plan()).plan.change(f"group/{stack.stack.names.node}")
    assert change.fields == ("readiness",)
    with pytest.raises(NoCapacity):
        await provision(stack)
    assert "group" not in {item.kind for item in (await items(stack)).values()}


@pytest.mark.parametrize(
    "method",
    ["RegionInstanceTemplates/Insert", "ResourcePolicies/Insert", "InstanceGroupManagers/Insert"],
)
async def test_down_deletes_what_an_interrupted_up_created(
    make: MakeStack, cloud: LocalCloud, method: str
) -> None:
    stack = make("v6e-16")
    hold = remote_control.add_fault(cloud, "hold", method=method, hold_response=True)["id"]

    async def is_held() -> bool:
        return bool(remote_control.fault(cloud, hold).get("held_calls"))

    async with in_background(provision(stack)):
        await async_until(is_held, "the creation being interrupted")
    remote_control.release(cloud, hold)
    remote_control.remove_fault(cloud, hold)
    assert not (await stack.down()).leaks
    assert await items(stack) == {}
