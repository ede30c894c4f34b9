"""`up --race`: a TPU is requested in several zones at once, and kept where it is granted first."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.support.forked_cli import forked_tpuctl, run_tpuctl
from tests.support.polling import async_until
from tests.support.projects import provision
from tests.support.queued import in_background, kill_race, nodes_of, request_of, with_queue
from tpuctl.api import Tpuctl
from tpuctl.errors import Conflict, Denied, NoCapacity, QuotaExceeded, Usage
from tpuctl.flows.machines.inventory import list_resources
from tpuctl.flows.stack.plan import Prepared
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.model.events import Event, Note, Outcome, Planned, StepFinished, WarningIssued
from tpuctl.model.plan import Action
from tpuctl.resources.base import time_of
from tpuctl.resources.project.ledger import LedgerObject
from tpuctl.resources.project.stack_record import RaceWinner, Record

pytestmark = pytest.mark.long

MakeStack = Callable[..., Tpuctl]
AddFault = Callable[..., str]
A, B, C = "us-central1-b", "us-central1-c", "us-central1-f"
ZONES = f"{A}, {B}, {C}"


@pytest.fixture
def add_fault(cloud: LocalCloud) -> AddFault:
    def add(kind: str, **fields: Any) -> str:
        return str(remote_control.add_fault(cloud, kind, **fields)["id"])

    return add


@pytest.fixture
def make(make_stub_stack: MakeStack) -> MakeStack:
    queued = with_queue(make_stub_stack)

    def make_raced(**options: Any) -> Tpuctl:
        return queued(**({"zone": ZONES} | options))

    return make_raced


async def race(stack: Tpuctl) -> Prepared:
    """Like `up --race`, without connecting to machines: they are stubs."""
    return await stack.provision(await stack.plan(race=True))


async def states(stack: Tpuctl) -> dict[str, str]:
    """The state of the stack's TPU resources in all zones, from their lists."""
    items = await list_resources(
        stack.cloud, "local-project", stack=stack.stack.name, on_error=lambda *_: None
    )
    return {f"{item.kind} {item.zone}": item.state for item in items if item.kind_class.is_machine}


def background_race(stack: Tpuctl) -> AbstractAsyncContextManager[asyncio.Task[Prepared]]:
    """Run a race in the background; cancel it at the end of the block."""
    return in_background(race(stack))


async def wait_for_state(stack: Tpuctl, state: str, *zones: str) -> None:
    """Wait until the requests in all of these zones have this state."""

    async def have_it() -> bool:
        current = await states(stack)
        return all(current.get(f"queued {zone}") == state for zone in zones)

    await async_until(have_it, f"the requests in {zones} being {state}")


async def let_win(stack: Tpuctl, zone: str) -> None:
    """Write into the stack's record that this zone has won, as another program does."""
    winner = RaceWinner(zone=zone, created=time_of((await request_of(stack, zone)).create_time))
    await Record(stack.stack, stack.cloud).update(
        lambda contents: contents.model_copy(update={"race_winner": winner})
    )


async def hold_poll(add_fault: AddFault, cloud: LocalCloud, zone: str, times: int | str) -> str:
    """Hold the race's next polls of a zone, once it has asked; returns the fault's id."""
    fault = add_fault("hold", method="GetQueuedResource", zone=zone, times=times)
    await asyncio.to_thread(remote_control.wait_held, cloud, fault, 30)
    return fault


async def test_first_zone_that_grants_is_kept(
    make: MakeStack, add_fault: AddFault, cloud: LocalCloud, events: list[Event]
) -> None:
    """One zone is sold out, another is slow to create the node."""
    add_fault("stockout", zone=A, times="unlimited")
    add_fault("stuck-provisioning", zone=C)
    stack = make(extra="controller: {}\n")
    planned = await stack.plan(race=True)
    requests = [change for change in planned.plan if change.address.startswith("queued/")]
    assert [(change.address, change.action) for change in requests] == [
        (f"queued/{zone}/{stack.stack.names.queued}", Action.CREATE) for zone in (A, B, C)
    ]
    controller = planned.plan.change(f"controller/{stack.stack.names.controller}")
    assert controller.because == "beside the TPU, once its zone is decided"
    assert not await states(stack), "planning requests nothing"

    prepared = await stack.provision(planned)
    assert prepared.stack.zone == B
    assert await states(stack) == {
        f"queued {B}": "ACTIVE",
        f"node {B}": "READY",
        f"controller {B}": "RUNNING",
    }
    note = next(event.text for event in events if isinstance(event, Note))
    assert note.startswith(f"{B} granted the TPU first")
    assert f"Requests deleted in {A}, {C}." in note
    ends = {
        event.address: event.outcome
        for event in events
        if isinstance(event, StepFinished) and event.address.startswith("queued/us-")
    }
    assert set(ends.values()) == {Outcome.DONE}, "a withdrawn request has not failed"
    plans = [event for event in events if isinstance(event, Planned)]
    assert len(plans) == 2
    assert not any(step.action == "delete" for step in plans[1].steps), "deleted by the race"

    assert (await stack.plan()).plan.is_empty
    again = await stack.plan(race=True)  # there is a TPU: nothing to race for
    assert again.race is None
    assert again.plan.is_empty
    assert (await stack.down(delete_bucket=True)).leaks == ()
    assert await states(stack) == {}


async def test_request_that_was_not_deleted_is_deleted_by_the_next_plan(
    make: MakeStack, add_fault: AddFault, cloud: LocalCloud
) -> None:
    add_fault("stuck-provisioning", zone=C)
    stack = make(zone=f"{A}, {C}")
    denied = add_fault("deny", method="DeleteQueuedResource")
    await race(stack)
    assert remote_control.fault(cloud, denied)["applied"] == 1
    assert await states(stack) == {f"queued {A}": "ACTIVE", f"node {A}": "READY"}
    await stack.down(delete_bucket=True)


async def test_request_that_cannot_be_deleted_is_an_error(
    make: MakeStack, add_fault: AddFault, cloud: LocalCloud
) -> None:
    """`up` never ends well while a second TPU may be charged."""
    add_fault("stockout", zone=C, times="unlimited")
    stack = make(zone=f"{A}, {C}")
    denied = add_fault("deny", method="DeleteQueuedResource", times="unlimited")
    with pytest.raises(Denied):
        await race(stack)
    assert (await states(stack))[f"queued {C}"] == "WAITING_FOR_RESOURCES"
    remote_control.remove_fault(cloud, denied)
    await race(stack)
    assert await states(stack) == {f"queued {A}": "ACTIVE", f"node {A}": "READY"}
    await stack.down(delete_bucket=True)


async def test_requests_of_all_zones_wait_at_the_same_time(
    make: MakeStack, add_fault: AddFault, cloud: LocalCloud
) -> None:
    sold_out = {zone: add_fault("stockout", zone=zone, times="unlimited") for zone in (A, B, C)}
    stack = make()
    async with background_race(stack) as task:
        await wait_for_state(stack, "WAITING_FOR_RESOURCES", A, B, C)
        remote_control.remove_fault(cloud, sold_out[C])
        assert (await task).stack.zone == C
    assert await states(stack) == {f"queued {C}": "ACTIVE", f"node {C}": "READY"}
    await stack.down(delete_bucket=True)


async def test_two_zones_that_grant_at_the_same_time_leave_one_tpu(
    make: MakeStack, add_fault: AddFault, cloud: LocalCloud
) -> None:
    """The race notices the first only after the second has its TPU, too."""
    faults = [add_fault("stuck-provisioning", zone=zone) for zone in (A, B)]
    stack = make(zone=f"{A}, {B}", extra="limits: {max_cost: 100}\n")
    async with background_race(stack) as task:
        await wait_for_state(stack, "PROVISIONING", A, B)
        hold = add_fault("hold", method="GetQueuedResource", times="unlimited")
        await asyncio.to_thread(remote_control.wait_held, cloud, hold, 30)
        for fault in faults:
            remote_control.remove_fault(cloud, fault)

        async def are_both_ready() -> bool:
            return [node.state.name for node in await nodes_of(stack)] == ["READY", "READY"]

        await async_until(are_both_ready, "both nodes being charged")
        remote_control.remove_fault(cloud, hold)
        winner = (await task).stack.zone
    assert winner in (A, B)
    assert await states(stack) == {f"queued {winner}": "ACTIVE", f"node {winner}": "READY"}
    (period,) = (await LedgerObject.of(stack.stack, stack.cloud).read()).periods
    assert {winner, period.zone} == {A, B}
    assert period.ended is not None and period.per_hour == pytest.approx(4.505)
    assert (await stack.down(delete_bucket=True)).leaks == ()


async def test_refusals_of_single_zones_do_not_end_the_race(
    make: MakeStack, add_fault: AddFault, cloud: LocalCloud, events: list[Event]
) -> None:
    """Quota is refused in one zone, valid_until passes in another."""
    add_fault("quota", zone=A, method="CreateQueuedResource")
    expired = add_fault(
        "queue-failure", zone=B, code="DEADLINE_EXCEEDED", text="The constraint expired."
    )
    stuck = add_fault("stuck-provisioning", zone=C)
    stack = make(queue="{valid_until: 6h}")
    async with background_race(stack) as task:
        await wait_for_state(stack, "PROVISIONING", C)

        def has_failed(zone: str) -> bool:
            return any(
                isinstance(event, StepFinished)
                and event.outcome is Outcome.FAILED
                and event.address.startswith(f"queued/{zone}/")
                for event in events
            )

        await async_until(lambda: has_failed(A) and has_failed(B), "both zones having refused")
        assert remote_control.fault(cloud, expired)["applied"] == 1
        remote_control.remove_fault(cloud, stuck)
        assert (await task).stack.zone == C
    note = next(event.text for event in events if isinstance(event, Note))
    assert f"{A}: Quota exceeded" in note
    assert f"{B}: No capacity before valid_until" in note
    assert await states(stack) == {f"queued {C}": "ACTIVE", f"node {C}": "READY"}
    await stack.down(delete_bucket=True)


async def test_error_names_every_zone_if_all_refuse(make: MakeStack, add_fault: AddFault) -> None:
    add_fault("quota", zone=A, method="CreateQueuedResource")
    add_fault("queue-failure", zone=B, code="RESOURCE_EXHAUSTED", text="no more capacity")
    add_fault("stuck-provisioning", zone=C)
    stack = make(queue="{provisioning_timeout: 1s}")
    with pytest.raises(NoCapacity) as caught:
        await race(stack)
    assert caught.value.exit_code == 75
    for words in (f"{A}: Quota exceeded", B, f"{C}: Request stuck in PROVISIONING"):
        assert words in str(caught.value)
    assert await states(stack) == {}
    await stack.down(delete_bucket=True)


async def test_requests_left_by_a_failed_race_are_deleted_despite_an_unreadable_one(
    make: MakeStack, add_fault: AddFault, events: list[Event]
) -> None:
    for zone in (A, B):
        add_fault("queue-failure", zone=zone, code="RESOURCE_EXHAUSTED", text="no more capacity")
    add_fault("deny", method="DeleteQueuedResource", times=2)
    stack = make()
    prepared = await stack.plan(race=True)
    add_fault("deny", method="GetQueuedResource", zone=C, times="unlimited")
    with pytest.raises(Denied):
        await stack.provision(prepared)
    assert await states(stack) == {}
    reported = [event.diagnostic for event in events if isinstance(event, WarningIssued)]
    assert C in next(each.detail for each in reported if each.summary == "Possibly not deleted")


async def test_race_refused_by_quota_alone_has_its_exit_code(
    make: MakeStack, add_fault: AddFault
) -> None:
    add_fault("quota", method="CreateQueuedResource", times="unlimited")
    stack = make()
    with pytest.raises(QuotaExceeded) as caught:
        await race(stack)
    assert caught.value.exit_code == 76
    assert await states(stack) == {}
    await stack.down(delete_bucket=True)


async def test_repeated_race_adopts_requests(
    make: MakeStack, add_fault: AddFault, cloud: LocalCloud
) -> None:
    sold_out = {zone: add_fault("stockout", zone=zone, times="unlimited") for zone in (A, B, C)}
    stack = make()
    async with background_race(stack):
        await wait_for_state(stack, "WAITING_FOR_RESOURCES", A, B, C)
    created = {zone: (await request_of(stack, zone)).create_time for zone in (A, B, C)}

    again = make(name=stack.stack.name)
    planned = await again.plan(race=True)
    assert {change.fields for change in planned.plan if change.address.startswith("queued/")} == {
        ("readiness",)
    }
    async with background_race(again) as task:
        await asyncio.sleep(0)
        remote_control.remove_fault(cloud, sold_out[B])
        assert (await task).stack.zone == B
    assert (await request_of(again, B)).create_time == created[B]
    assert await states(again) == {f"queued {B}": "ACTIVE", f"node {B}": "READY"}
    await again.down(delete_bucket=True)


@pytest.mark.parametrize("is_race", [True, False])
async def test_up_after_interrupted_race_keeps_one_of_two_tpus(
    make: MakeStack, add_fault: AddFault, cloud: LocalCloud, is_race: bool
) -> None:
    """Both zones grant a TPU after the race was interrupted."""
    faults = [add_fault("stuck-provisioning", zone=zone) for zone in (A, C)]
    stack = make(zone=f"{A}, {C}")
    async with background_race(stack):
        await wait_for_state(stack, "PROVISIONING", A, C)
    listed = {item.address for item in await stack.orphans()}
    assert {f"queued/{zone}/{stack.stack.names.queued}" for zone in (A, C)} <= listed
    for fault in faults:
        remote_control.remove_fault(cloud, fault)
    await wait_for_state(stack, "ACTIVE", A, C)

    prepared = await stack.plan(race=is_race)
    assert prepared.plan.change(f"queued/{C}/{stack.stack.names.queued}").action is Action.DELETE
    await stack.provision(prepared)
    assert await states(stack) == {f"queued {A}": "ACTIVE", f"node {A}": "READY"}
    assert (await stack.down(delete_bucket=True)).leaks == ()
    assert await states(stack) == {}


async def test_races_of_two_people_keep_the_same_tpu(make: MakeStack) -> None:
    first = make()
    other = make(name=first.stack.name)
    plans = [await stack.plan(race=True) for stack in (first, other)]
    ends = await asyncio.gather(first.provision(plans[0]), other.provision(plans[1]))
    winner = ends[0].stack.zone
    assert ends[1].stack.zone == winner
    assert await states(first) == {f"queued {winner}": "ACTIVE", f"node {winner}": "READY"}
    assert (await first.down(delete_bucket=True)).leaks == ()


async def test_winner_of_another_program_is_kept(
    make: MakeStack, add_fault: AddFault, cloud: LocalCloud
) -> None:
    """This program sees zone A become ACTIVE, another has seen B first."""
    faults = [add_fault("stuck-provisioning", zone=zone) for zone in (A, B)]
    stack = make(zone=f"{A}, {B}")
    async with background_race(stack) as task:
        await wait_for_state(stack, "PROVISIONING", A, B)
        await let_win(stack, B)
        hold = await hold_poll(add_fault, cloud, B, "unlimited")
        for fault in faults:
            remote_control.remove_fault(cloud, fault)
        await wait_for_state(stack, "ACTIVE", A, B)

        def asks_for_winner() -> bool:  # its own poll of B is held, and now A's question about it
            return len(remote_control.fault(cloud, hold)["held_calls"]) == 2

        await async_until(asks_for_winner, "the winner in the record being looked up")
        remote_control.remove_fault(cloud, hold)
        assert (await task).stack.zone == B
    assert await states(stack) == {f"queued {B}": "ACTIVE", f"node {B}": "READY"}
    await stack.down(delete_bucket=True)


async def test_request_that_another_program_withdraws_does_not_win(
    make: MakeStack, add_fault: AddFault, cloud: LocalCloud
) -> None:
    """Another has kept B; A's request was ACTIVE, and is gone when this program looks again."""
    faults = [add_fault("stuck-provisioning", zone=zone) for zone in (A, B)]
    stack = make(zone=f"{A}, {B}")
    async with background_race(stack) as task:
        await wait_for_state(stack, "PROVISIONING", A, B)
        await let_win(stack, B)
        winner_poll = await hold_poll(add_fault, cloud, B, "unlimited")
        poll = await hold_poll(add_fault, cloud, A, 1)
        for fault in faults:
            remote_control.remove_fault(cloud, fault)
        await wait_for_state(stack, "ACTIVE", A, B)
        later = add_fault("hold", method="GetQueuedResource", zone=A, times=1)
        remote_control.remove_fault(cloud, poll)  # this poll sees that A is ACTIVE
        await asyncio.to_thread(remote_control.wait_held, cloud, later, 30)
        delete = {"name": (await request_of(stack, A)).name, "force": True}
        await stack.cloud.call("A", stack.cloud.client("tpu").delete_queued_resource, delete)

        async def is_gone() -> bool:
            return f"queued {A}" not in await states(stack)

        await async_until(is_gone, "the request in A being deleted")
        for fault in (later, winner_poll):
            remote_control.remove_fault(cloud, fault)
        assert (await task).stack.zone == B
    assert await states(stack) == {f"queued {B}": "ACTIVE", f"node {B}": "READY"}
    await stack.down(delete_bucket=True)


@pytest.mark.parametrize(
    ("method", "at", "acted"),
    [
        ("CreateQueuedResource", 2, False),
        ("CreateQueuedResource", 3, True),
        ("DeleteQueuedResource", 1, False),
        ("DeleteQueuedResource", 2, True),
    ],
)
async def test_race_is_repeated_after_kill(
    make: MakeStack, cloud: LocalCloud, method: str, at: int, acted: bool
) -> None:
    """Killed with SIGKILL, before or after the cloud has acted on a call."""
    stack = make()
    await kill_race(stack, cloud, method, at=at, hold_response=acted)
    assert len(await states(stack)) > 1, "it was killed during the race"

    winner = (await race(stack)).stack.zone
    assert await states(stack) == {f"queued {winner}": "ACTIVE", f"node {winner}": "READY"}
    assert (await stack.plan()).plan.is_empty
    assert (await stack.down(delete_bucket=True)).leaks == ()
    assert await states(stack) == {}


async def test_down_during_race_deletes_all_requests(make: MakeStack, add_fault: AddFault) -> None:
    add_fault("stockout", times="unlimited")
    stack = make()
    async with background_race(stack) as task:
        await wait_for_state(stack, "WAITING_FOR_RESOURCES", A, B, C)
        assert (await make(name=stack.stack.name).down(delete_bucket=True)).leaks == ()
        with pytest.raises(Conflict, match="down"):
            await task
    assert await states(stack) == {}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"queue": "false"}, "tpu.queue is not set"),
        ({"zone": A}, f"has only {A}"),
        ({"tpu": "data_disks: [{size_gb: 10}]"}, "a data disk exists in one zone only"),
        (
            {"queue": "false", "runtime": "2.12.0", "tpu": "kind: node"},
            "a TPU node (tpu.kind: node) cannot be queued",
        ),
    ],
)
async def test_stack_that_cannot_be_raced_is_refused(
    make: MakeStack, options: dict[str, Any], words: str
) -> None:
    stack = make(**options)
    with pytest.raises(Usage) as caught:
        await stack.plan(race=True)
    assert caught.value.exit_code == 2
    assert words in str(caught.value)
    assert caught.value.diagnostics[0].hint


async def test_plan_tells_what_a_race_may_cost(make: MakeStack) -> None:
    stack = make()
    done = run_tpuctl("plan", "--race", folder=stack.stack_file.parent)
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert f"Race: the TPU is requested in {A}, {B}, {C} at once." in text
    assert "limits.idle (30m)" in text
    assert "tpuctl up --race" in text
    cost = (await stack.plan(race=True)).race_cost
    assert cost is not None
    assert cost.per_hour is not None
    each = cost.per_hour / 3  # the zones of a region have one price
    assert cost.extra == pytest.approx(2 * each * cost.seconds / 3600)


async def test_ctrl_c_during_race_tells_what_may_be_charged(
    make: MakeStack, add_fault: AddFault
) -> None:
    add_fault("stockout", times="unlimited")
    stack = make()
    process = await asyncio.create_subprocess_exec(
        *(forked_tpuctl(), "up", "--race", "--yes"),
        cwd=stack.stack_file.parent,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    async with asyncio.timeout(60):
        story = ""
        while story.count("WAITING_FOR_RESOURCES") < 3:
            line = (await process.stderr.readline()).decode()
            assert line, story
            story += line
        process.send_signal(signal.SIGINT)
        rest = (await process.stderr.read()).decode()
        assert await process.wait() == 130
    assert "Race: the TPU is requested" in story, "costs are shown with --yes, too"
    assert "each TPU is charged once it is granted" in rest
    assert "tpuctl down" in rest
    assert (await stack.down(delete_bucket=True)).leaks == ()
    assert await states(stack) == {}


async def test_zones_shows_what_granted_and_refused(
    make: MakeStack,
    add_fault: AddFault,
    cloud: LocalCloud,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also on another computer, from the stack's record; another cloud's history is separate."""
    first, second = tmp_path / "first", tmp_path / "second"
    monkeypatch.setenv("TPUCTL_CONFIG_HOME", str(first))
    add_fault("quota", zone=A, method="CreateQueuedResource")
    add_fault("stuck-provisioning", zone=C)
    stack = make(tpu="capacity: spot")
    await race(stack)

    def history(cloud_name: str = "local") -> dict[str, list[dict[str, Any]]]:
        command = ("--cloud", cloud_name, "--json", "zones", "--type", "v2-8")
        done = run_tpuctl(*command, folder=tmp_path)
        zones = json.loads(done.stdout)["data"]["zones"]
        return {zone["zone"]: zone["history"] for zone in zones if zone["history"]}

    listed = history()
    assert set(listed) == {A, B}, "the request that was withdrawn has no outcome"
    (granted,), (refused,) = listed[B], listed[A]
    assert (granted["capacity"], granted["refused_since"], granted["error"]) == ("spot", 0, None)
    assert granted["granted"] is not None
    assert granted["waited_seconds"] >= 0
    assert (refused["granted"], refused["refused_since"]) == (None, 1)
    assert refused["error"] == "Quota exceeded"
    assert history("google") == {}

    done = run_tpuctl("zones", "--type", "v2-8", "--zone", f"{A},{B}", folder=tmp_path)
    text = " ".join(done.stdout.split())
    assert "spot: granted" in text
    assert "spot: refused once" in text

    monkeypatch.setenv("TPUCTL_CONFIG_HOME", str(second))
    assert history() == {}
    await stack.down()  # the bucket stays, with the record
    other = make(name=stack.stack.name, tpu="capacity: spot", zone=B)
    await provision(other)
    assert set(history()) == {A, B}
    await other.down(delete_bucket=True)
