"""`up --race` with Compute Engine: instances and groups, which are created without a request, take
part like queued resources."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.polling import async_until
from tests.support.projects import numbers, use_cloud
from tests.support.queued import in_background, kill_race
from tpuctl.api import Tpuctl
from tpuctl.errors import Conflict, NoCapacity, Usage
from tpuctl.flows.machines.inventory import list_resources
from tpuctl.flows.stack.plan import Prepared
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.model.events import Event, Note
from tpuctl.resources.project.ledger import LedgerObject

pytestmark = pytest.mark.long

MakeStack = Callable[..., Tpuctl]
WEST, EAST, OTHER = "us-west4-a", "us-east5-b", "us-east1-d"
QUEUED = f"{{type: v5litepod-8, zones: [{WEST}], queue: true}}"
INSTANCE = f"{{type: v6e-8, zones: [{EAST}], api: compute}}"
OTHER_INSTANCE = f"{{type: v6e-8, zones: [{OTHER}], api: compute}}"
GROUP = f"{{type: v6e-16, zones: [{EAST}], api: compute}}"
MACHINE, GROUP_MACHINE = "ct6e-standard-8t", "ct6e-standard-4t"


@pytest.fixture
def make(
    null_cloud: LocalCloud, tmp_path: Path, events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> MakeStack:
    use_cloud(null_cloud, monkeypatch)

    def make(*alternatives: str, name: str = "", extra: str = "") -> Tpuctl:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        path = folder / "tpuctl.yaml"
        path.write_text(
            f"stack: {name or f'race-{next(numbers)}'}\nproject: local-project\n"
            f"bucket: {{allow_egress: true}}\n{extra}"
            f"tpu:\n  any_of: [{', '.join(alternatives)}]\n",
            "utf-8",
        )
        return Tpuctl(path, cloud="local", emit=events.append)

    return make


def sell_out(cloud: LocalCloud, kind: str, zone: str) -> str:
    """No capacity for a type of the Cloud TPU API, or a machine type; returns the fault's id."""
    fault = remote_control.add_fault(cloud, "stockout", type=kind, zone=zone, times="unlimited")
    return str(fault["id"])


async def race(stack: Tpuctl) -> Prepared:
    return await stack.provision(await stack.plan(race=True))


async def states(stack: Tpuctl) -> dict[str, str]:
    """The state of what the stack has in zones and regions, apart from networks."""
    items = await list_resources(
        stack.cloud, "local-project", stack=stack.stack.name, on_error=lambda *_: None
    )
    return {
        f"{item.kind} {item.zone}": item.state
        for item in items
        if item.kind_class.is_tpu or item.kind in ("template", "workload-policy")
    }


async def take_down(stack: Tpuctl) -> None:
    assert (await stack.down(delete_bucket=True)).leaks == ()
    assert await states(stack) == {}


def outcome(events: list[Event]) -> str:
    return next(event.text for event in events if isinstance(event, Note))


async def test_instance_wins_while_a_request_waits(
    make: MakeStack, cloud: LocalCloud, events: list[Event]
) -> None:
    sold_out = sell_out(cloud, "v5litepod-8", WEST)
    stack = make(QUEUED, INSTANCE)
    planned = await stack.plan(race=True)
    assert {change.address for change in planned.plan if "/us-" in change.address} == {
        f"queued/{WEST}/{stack.stack.names.queued}",
        f"instance/{EAST}/{stack.stack.names.node}",
    }
    cost = planned.race_cost
    assert cost is not None
    assert cost.zones == (f"on-demand v5litepod-8/{WEST}", f"on-demand v6e-8/{EAST}/compute")
    assert cost.per_hour == pytest.approx(8 * (1.20 + 2.70), abs=0.2)
    prepared = await stack.provision(planned)
    assert prepared.stack.candidate.key == f"on-demand v6e-8/{EAST}/compute"
    assert await states(stack) == {f"instance {EAST}": "READY"}
    assert outcome(events).startswith(
        f"on-demand v6e-8 in {EAST} through Compute Engine was granted first"
    )
    assert outcome(events).endswith(f"Requests deleted: on-demand v5litepod-8 in {WEST}.")
    assert (await stack.plan()).plan.is_empty
    again = await stack.plan(race=True)
    assert (again.race, again.plan.is_empty) == (None, True)
    remote_control.remove_fault(cloud, sold_out)
    await take_down(stack)


async def test_request_wins_while_flex_start_waits(
    make: MakeStack, cloud: LocalCloud, events: list[Event]
) -> None:
    """What waited was never charged, and is in no ledger."""
    sell_out(cloud, MACHINE, EAST)
    waiting = INSTANCE.removesuffix("}") + ", capacity: flex-start, queue: {run_for: 4h}}"
    fault = sell_out(cloud, "v5litepod-8", WEST)
    stack = make(waiting, QUEUED, extra="limits: {max_cost: 100}\n")
    async with in_background(race(stack)) as task:

        async def both_wait() -> bool:
            return await states(stack) == {
                f"instance {EAST}": "PENDING",
                f"queued {WEST}": "WAITING_FOR_RESOURCES",
            }

        await async_until(both_wait, "both waiting")
        remote_control.remove_fault(cloud, fault)
        assert (await task).stack.zone == WEST
    assert await states(stack) == {f"queued {WEST}": "ACTIVE", f"node {WEST}": "READY"}
    assert "through Compute Engine" in outcome(events).partition("Requests deleted:")[2]
    periods = (await LedgerObject.of(stack.stack, stack.cloud).read()).periods
    assert all(period.ended is None for period in periods)
    await take_down(stack)


async def test_instances_that_are_created_at_the_same_time_leave_one(
    make: MakeStack, cloud: LocalCloud
) -> None:
    """Both run before the race looks; the other one's cost counts."""
    stack = make(INSTANCE, OTHER_INSTANCE, extra="limits: {max_cost: 100}\n")
    planned = await stack.plan(race=True)
    # Each is looked up twice before it is created.
    hold = remote_control.add_fault(cloud, "hold", method="Instances/Get", at=5, times="unlimited")
    async with in_background(stack.provision(planned)) as task:

        async def both_run() -> bool:
            return list((await states(stack)).values()) == ["READY", "READY"]

        await async_until(both_run, "both instances running")
        remote_control.remove_fault(cloud, hold["id"])
        winner = (await task).stack.zone
    assert await states(stack) == {f"instance {winner}": "READY"}
    (lost,) = {EAST, OTHER} - {winner}
    periods = (await LedgerObject.of(stack.stack, stack.cloud).read()).periods
    assert [period.zone for period in periods if period.ended is not None] == [lost]
    await take_down(stack)


async def test_group_that_loses_leaves_nothing(make: MakeStack, cloud: LocalCloud) -> None:
    sell_out(cloud, GROUP_MACHINE, EAST)
    waiting = GROUP.removesuffix("}") + ", capacity: flex-start, queue: {run_for: 4h}}"
    fault = sell_out(cloud, "v5litepod-8", WEST)
    stack = make(waiting, QUEUED)
    async with in_background(race(stack)) as task:

        async def group_waits() -> bool:
            return (await states(stack)).get(f"group {EAST}") == "PENDING"

        await async_until(group_waits, "the group waiting for its machines")
        remote_control.remove_fault(cloud, fault)
        assert (await task).stack.zone == WEST
    assert await states(stack) == {f"queued {WEST}": "ACTIVE", f"node {WEST}": "READY"}
    await take_down(stack)


async def test_group_wins(make: MakeStack, cloud: LocalCloud) -> None:
    sell_out(cloud, "v5litepod-8", WEST)
    stack = make(QUEUED, GROUP)
    await race(stack)
    assert await states(stack) == {
        f"group {EAST}": "READY",
        "template us-east5": "",
        "workload-policy us-east5": "",
    }
    assert (await stack.plan()).plan.is_empty
    await take_down(stack)


async def test_tpu_vm_without_a_queue_wins_beside_others(
    make: MakeStack, cloud: LocalCloud
) -> None:
    sell_out(cloud, "v5litepod-8", WEST)
    stack = make(QUEUED, f"{{type: v6e-8, zones: [{EAST}]}}")
    await race(stack)
    assert await states(stack) == {f"node {EAST}": "READY"}
    await take_down(stack)


async def test_both_apis_are_asked_in_one_zone(make: MakeStack, cloud: LocalCloud) -> None:
    sell_out(cloud, "v6e-8", EAST)
    queued = f"{{type: v6e-8, zones: [{EAST}], queue: true}}"
    stack = make(queued, INSTANCE)
    planned = await stack.plan(race=True)
    assert planned.race is not None
    assert [place.api for place in planned.race.places] == ["tpu", "compute"]
    await stack.provision(planned)
    assert await states(stack) == {f"instance {EAST}": "READY"}
    await take_down(stack)


async def test_refused_instance_leaves_the_race(
    make: MakeStack, cloud: LocalCloud, events: list[Event]
) -> None:
    """Of its two slices one was created, and is not left while the others wait."""
    slices = INSTANCE.removesuffix("}") + ", slices: 2}"
    fault = sell_out(cloud, "v5litepod-8", WEST)
    stack = make(QUEUED, slices)
    remote_control.add_fault(cloud, "stockout", type=MACHINE, zone=EAST)
    async with in_background(race(stack)) as task:

        async def only_request_is_left() -> bool:
            steps = [event for event in events if getattr(event, "outcome", None) is not None]
            ended = any(getattr(step, "address", "").startswith("instance/") for step in steps)
            return ended and await states(stack) == {f"queued {WEST}": "WAITING_FOR_RESOURCES"}

        await async_until(only_request_is_left, "the slices being deleted")
        remote_control.remove_fault(cloud, fault)
        assert (await task).stack.zone == WEST
    assert f"Refused: on-demand 2 x v6e-8 in {EAST} through Compute Engine" in outcome(events)
    await take_down(stack)


async def test_error_names_every_place_if_all_refuse(make: MakeStack, cloud: LocalCloud) -> None:
    sell_out(cloud, MACHINE, EAST)
    remote_control.add_fault(
        cloud, "queue-failure", zone=WEST, code="RESOURCE_EXHAUSTED", text="no more capacity"
    )
    stack = make(QUEUED, INSTANCE)
    with pytest.raises(NoCapacity) as caught:
        await race(stack)
    assert caught.value.exit_code == 75
    for words in (f"v5litepod-8 in {WEST}: ", f"v6e-8 in {EAST} through Compute Engine: "):
        assert words in str(caught.value)
    assert await states(stack) == {}
    await take_down(stack)


async def test_races_of_two_people_keep_the_same_tpu(make: MakeStack) -> None:
    first = make(INSTANCE, QUEUED, OTHER_INSTANCE)
    other = make(INSTANCE, QUEUED, OTHER_INSTANCE, name=first.stack.name)
    plans = [await stack.plan(race=True) for stack in (first, other)]
    ends = await asyncio.gather(first.provision(plans[0]), other.provision(plans[1]))
    winner = ends[0].stack.candidate
    assert ends[1].stack.candidate == winner
    kinds = {"instance"} if winner.api == "compute" else {"queued", "node"}
    assert {*await states(first)} == {f"{kind} {winner.zone}" for kind in kinds}
    await take_down(first)


async def test_down_during_race_deletes_all(make: MakeStack, cloud: LocalCloud) -> None:
    sell_out(cloud, MACHINE, EAST)
    sell_out(cloud, "v5litepod-8", WEST)
    waiting = INSTANCE.removesuffix("}") + ", capacity: flex-start, queue: {run_for: 4h}}"
    stack = make(waiting, QUEUED)
    async with in_background(race(stack)) as task:

        async def both_wait() -> bool:
            return len(await states(stack)) == 2

        await async_until(both_wait, "both requests")
        await take_down(make(waiting, QUEUED, name=stack.stack.name))
        with pytest.raises(Conflict, match="down"):
            await task
    assert await states(stack) == {}


@pytest.mark.parametrize(
    ("method", "acted"),
    [
        ("Instances/Insert", False),
        ("Instances/Insert", True),
        ("InstanceGroupManagers/Insert", True),
        ("Instances/Delete", False),
        ("Instances/Delete", True),
    ],
)
async def test_race_is_repeated_after_kill(
    make: MakeStack, cloud: LocalCloud, method: str, acted: bool
) -> None:
    """Killed with SIGKILL, before or after the cloud has acted on a call."""
    places = [QUEUED, INSTANCE, OTHER_INSTANCE]
    if method.startswith("InstanceGroup"):
        places[1] = GROUP
    stack = make(*places)
    await kill_race(stack, cloud, method, hold_response=acted)

    await race(stack)
    remaining = await states(stack)
    assert [*remaining.values()].count("READY") == 1
    assert len({key.partition(" ")[2].rpartition("-")[0] for key in remaining}) == 1, (
        "of one region"
    )
    assert (await stack.plan()).plan.is_empty
    await take_down(stack)


async def test_tpu_vms_alone_need_a_queue(make: MakeStack) -> None:
    """Otherwise a race would soon have one in each zone."""
    stack = make(f"{{type: v5litepod-8, zones: [{WEST}]}}", f"{{type: v6e-8, zones: [{EAST}]}}")
    with pytest.raises(Usage, match=r"tpu\.queue is not set"):
        await stack.plan(race=True)
