"""What of all that stacks have seems forgotten, what to do next, and what each thing costs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tpuctl.model.advice import advice_on
from tpuctl.model.charges import Charge, charge_of, charges_of, hourly, is_charged, so_far
from tpuctl.model.inventory import InventoryItem, find_orphaned, stack_of_description, with_requests
from tpuctl.model.names import ownership, stack_of_account
from tpuctl.resources.composition import kind_of

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
A, B = "europe-west4-a", "europe-west4-b"


def found(
    kind: str, state: str = "", zone: str = A, hours: float = 2.0, **more: object
) -> InventoryItem:
    details = {"node": "v3-8", "tpu": "v3-8", "queued": "v3-8", "controller": "n1-standard-1"}
    details |= {"disk": "pd-standard", "bucket": "europe-west4"}
    fields: dict[str, object] = {
        "kind_class": kind_of(kind),
        "name": f"bert-{kind}",
        "stack": "bert",
        "zone": "" if kind in ("bucket", "account", "firewall", "network") else zone,
        "state": state,
        "detail": details.get(kind, ""),
        "created": NOW - timedelta(hours=hours),
    }
    return InventoryItem(**(fields | more))  # type: ignore[arg-type]


NODE = found("node", "READY")
TPU = found("tpu", "READY")
CONTROLLER = found("controller", "RUNNING")
DISK = found("disk", "READY", size_gb=100)
BUCKET = found("bucket")
ACCOUNT = found("account")


@pytest.mark.parametrize(
    ("everything", "left"),
    [
        ([], {}),
        ([NODE, BUCKET, ACCOUNT, found("disk", "in use")], {}),
        ([TPU, CONTROLLER, BUCKET], {}),
        ([BUCKET], {}),  # kept on purpose
        ([found("node", "STOPPED"), ACCOUNT], {}),  # to be started again
        ([found("node", "CREATING"), ACCOUNT, DISK], {}),
        # halves of pairs
        ([TPU], {"bert-tpu": "controller is gone"}),
        ([CONTROLLER], {"bert-controller": "no TPU"}),
        ([TPU, found("controller", "TERMINATED")], {}),  # stopped, it can be started again
        ([found("tpu", "CREATING")], {}),  # its controller comes beside it
        ([found("controller", "STAGING")], {}),
        ([found("controller", "RUNNING", B), NODE], {"bert-controller": "no TPU"}),
        # what does nothing any more
        ([found("node", "PREEMPTED"), DISK], {"bert-node": "PREEMPTED", "bert-disk": "no machine"}),
        ([found("tpu", "TERMINATED")], {"bert-tpu": "TERMINATED"}),
        ([found("queued", "FAILED")], {"bert-queued": "holds quota"}),
        ([found("queued", "SUSPENDED")], {"bert-queued": "holds quota"}),
        ([found("queued", "WAITING_FOR_RESOURCES"), DISK], {}),
        ([found("queued", "ACTIVE"), found("node", "READY", request="bert-queued")], {}),
        ([found("queued", "ACTIVE")], {"bert-queued": "nodes are gone"}),
        ([found("node", "DELETING")], {}),  # it goes by itself
        # second zones
        ([NODE, found("node", "READY", B, 1.0, name="other")], {"other": f"works in {A}"}),
        ([found("node", "CREATING", B, 9.0, name="other"), NODE], {"other": f"works in {A}"}),
        ([NODE, found("disk", "READY", B)], {"bert-disk": "no machine"}),
        # rests
        ([ACCOUNT, found("firewall")], {"bert-account": "nothing", "bert-firewall": "nothing"}),
        ([found("address", "RESERVED", "europe-west4")], {"bert-address": "no machine"}),
    ],
)
def test_what_is_left_behind(everything: list[InventoryItem], left: dict[str, str]) -> None:
    told = {one.item.name: one.why for one in find_orphaned(everything)}
    assert told.keys() == left.keys()
    for name, why in left.items():
        assert why in told[name]


def test_stacks_are_judged_apart() -> None:
    """The node of one stack is no reason to keep the disk of another."""
    other = found("disk", "READY", stack="gpt", name="gpt-data-0")
    assert [one.item for one in find_orphaned([NODE, other, ACCOUNT])] == [other]


def test_the_owner_by_description_and_by_account() -> None:
    for stack in ("bert", "a", "my-stack-2"):
        assert stack_of_description(ownership(stack)) == stack
    for text in ("", "Made by tpuctl for stack ", f"{ownership('bert')}!", ownership("Bert")):
        assert stack_of_description(text) is None
    assert (stack_of_account("bert-ko-tpu"), stack_of_account("a-stack-tpu")) == ("bert-ko", "a")
    assert stack_of_account("tpu") is None
    assert stack_of_account("bert-vm") is None


@pytest.mark.parametrize(
    ("everything", "told", "command"),
    [
        ([], "Nothing of it exists", "up"),
        ([BUCKET], "Nothing of it runs", "up"),
        ([BUCKET, DISK], "other things are", "down"),
        ([found("node", "PREEMPTED"), BUCKET], "bert-node is PREEMPTED", "up"),
        ([found("node", "STOPPED")], "To start it", "up"),
        ([found("queued", "FAILED")], "To ask again", "up"),
        ([found("queued", "WAITING_FOR_RESOURCES")], "still waits", "up"),
        ([TPU, found("controller", "TERMINATED")], "bert-controller is TERMINATED", "up"),
        ([found("tpu", "PREEMPTED"), CONTROLLER, DISK], "bert-tpu is PREEMPTED", "up"),
        ([CONTROLLER], "no TPU beside it", "up"),
        ([TPU], "controller is gone", "up"),
        ([NODE, found("disk", "READY", B)], f"disk/{B}/bert-disk", "up"),
    ],
)
def test_what_to_do_next(everything: list[InventoryItem], told: str, command: str) -> None:
    (advice,) = advice_on(everything)
    assert told in advice.text
    assert advice.command == command


@pytest.mark.parametrize("everything", [[NODE, BUCKET], [TPU, CONTROLLER, DISK]])
def test_what_is_well_needs_no_advice(everything: list[InventoryItem]) -> None:
    assert advice_on(everything) == ()


# Published, in US dollars an hour: v3-8 in europe-west4-a 8.80, on spot 2.244; n1-standard-1 there
# 0.052292; an address 0.005, on spot 0.0025; pd-standard 0.044 per GB per month of 730 hours.
@pytest.mark.parametrize(
    ("one", "per_hour"),
    [
        (NODE, 8.8),
        (found("node", "READY", capacity="spot"), 2.244),
        (found("node", "READY", external_addresses=4), 8.82),
        (found("node", "REPAIRING"), 8.8),
        (found("tpu", "READY", capacity="preemptible"), 2.244),
        (CONTROLLER, 0.052292),
        (found("controller", "RUNNING", external_addresses=1), 0.057292),
        (DISK, 100 * 0.044 / 730),
        (found("disk", "in use", size_gb=100), 100 * 0.044 / 730),
        (found("address", "IN_USE", "europe-west4"), 0.005),
    ],
)
def test_age_times_price(one: InventoryItem, per_hour: float) -> None:
    charge = charge_of(one, NOW)
    assert charge.hours == pytest.approx(2)
    assert charge.per_hour == pytest.approx(per_hour)
    assert charge.so_far == pytest.approx(2 * per_hour)
    assert charge.read == "mid-2026"
    assert is_charged(one)


@pytest.mark.parametrize(
    "one",
    [
        *(found("node", state) for state in ("PREEMPTED", "TERMINATED", "STOPPED")),
        found("tpu", "PREEMPTED"),
        found("controller", "TERMINATED"),
    ],
)
def test_what_has_ended_costs_nothing_now_and_nobody_knows_what_it_did(one: InventoryItem) -> None:
    charge = charge_of(one, NOW)
    assert (charge.per_hour, charge.so_far) == (0, None)
    assert one.state in charge.note
    assert not is_charged(one)


def test_what_has_not_begun_has_cost_nothing() -> None:
    for one in (found("node", "CREATING"), found("controller", "STAGING")):
        charge = charge_of(one, NOW)
        assert (charge.per_hour, charge.so_far) == (0, 0)


def test_a_disk_is_charged_whatever_its_machine_does() -> None:
    for state in ("READY", "in use", "STOPPED", "CREATING"):
        assert is_charged(found("disk", state))


@pytest.mark.parametrize(
    "one",
    [
        found("node", "READY", "us-central2-b"),
        found("node", "READY", detail="v99-8"),
        found("controller", "RUNNING", detail="c9-standard-4"),
        found("disk", "READY", detail="pd-future"),
    ],
)
def test_what_nobody_published_is_unknown(one: InventoryItem) -> None:
    charge = charge_of(one, NOW)
    assert (charge.per_hour, charge.so_far) == (None, None)
    assert is_charged(one)


def test_a_bucket_has_a_rate_alone() -> None:
    charge = charge_of(BUCKET, NOW)
    assert (charge.per_hour, charge.so_far) == (None, None)
    assert charge.note == "$0.02 per GB per month of stored data"


def test_sums_say_whether_they_are_whole() -> None:
    def sums(*everything: InventoryItem) -> tuple[tuple[float, bool], tuple[float, bool]]:
        charges: tuple[Charge, ...] = charges_of(everything, NOW)
        return hourly(charges), so_far(charges)

    assert sums() == ((0, True), (0, True))
    assert sums(NODE, CONTROLLER, BUCKET, ACCOUNT) == (
        (pytest.approx(8.852292), True),
        (pytest.approx(2 * 8.852292), True),
    )
    older = found("node", "READY", hours=10)
    assert sums(older, CONTROLLER)[1] == (pytest.approx(88 + 2 * 0.052292), True)
    preempted = found("node", "PREEMPTED")
    assert sums(preempted, CONTROLLER) == (
        (pytest.approx(0.052292), True),
        (pytest.approx(2 * 0.052292), False),
    )
    assert sums(found("node", "READY", detail="v99-8"))[0] == (0, False)


def test_a_clock_that_runs_behind_gives_nobody_money() -> None:
    assert charge_of(found("node", "READY", hours=-1), NOW).so_far == 0
    assert charge_of(found("node", "READY", created=None), NOW).so_far is None


def test_nodes_are_priced_as_their_request_asked() -> None:
    """A node tells neither that its request was for spot nor that it was for flex-start."""
    request = found("queued", "ACTIVE", capacity="spot")
    node = found("node", "READY", request=request.name)
    alone = found("node", "READY", name="alone")
    elsewhere = found("node", "READY", B, request=request.name, name="elsewhere")
    mended = {one.name: one for one in with_requests([node, request, alone, elsewhere])}
    assert mended["bert-node"].capacity == "spot"
    assert mended["alone"].capacity == mended["elsewhere"].capacity == "on-demand"
    assert len(mended) == 4

    plain = found("queued", "ACTIVE")
    for asked in ("flex-start", "on-demand", None):
        (one, _) = with_requests([node, plain], asked)  # type: ignore[arg-type]
        assert one.capacity == (asked if asked == "flex-start" else "on-demand")
