"""Orphans among the resources of stacks, advice on what to do next, and their cost."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tpuctl.model.status.advice import advice_on
from tpuctl.model.status.charges import Charge, charge_of, charges_of, hourly, is_charged, so_far
from tpuctl.model.status.inventory import (
    InventoryItem,
    find_orphaned,
    stack_of_description,
    with_requests,
)
from tpuctl.model.text.names import ownership, stack_of_account
from tpuctl.resources.base import time_of
from tpuctl.resources.composition import kind_of

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
A, B = "europe-west4-a", "europe-west4-b"


def item(
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


NODE = item("node", "READY")
TPU = item("tpu", "READY")
CONTROLLER = item("controller", "RUNNING")
DISK = item("disk", "READY", size_gb=100)
BUCKET = item("bucket")
ACCOUNT = item("account")


@pytest.mark.parametrize(
    ("everything", "left"),
    [
        ([], {}),
        ([NODE, BUCKET, ACCOUNT, item("disk", "in use")], {}),
        ([TPU, CONTROLLER, BUCKET], {}),
        ([BUCKET], {}),  # kept intentionally
        ([item("node", "STOPPED"), ACCOUNT], {}),  # can be restarted
        ([item("node", "CREATING"), ACCOUNT, DISK], {}),
        # halves of pairs
        ([TPU], {"bert-tpu": "controller no longer exists"}),
        ([CONTROLLER], {"bert-controller": "no TPU"}),
        ([TPU, item("controller", "TERMINATED")], {}),  # stopped: it can be restarted
        ([item("tpu", "CREATING")], {}),  # its controller is created next
        ([item("controller", "STAGING")], {}),
        ([item("controller", "RUNNING", B), NODE], {}),  # it works from another zone
        (
            [item("controller", "RUNNING", B), TPU],
            {"bert-controller": "no TPU", "bert-tpu": "controller no longer exists"},
        ),
        # unused resources
        ([item("node", "PREEMPTED"), DISK], {"bert-node": "PREEMPTED", "bert-disk": "no machine"}),
        ([item("tpu", "TERMINATED")], {"bert-tpu": "TERMINATED"}),
        ([item("queued", "FAILED")], {"bert-queued": "uses quota"}),
        ([item("queued", "SUSPENDED")], {"bert-queued": "uses quota"}),
        ([item("queued", "WAITING_FOR_RESOURCES"), DISK], {}),
        ([item("queued", "ACTIVE"), item("node", "READY", request="bert-queued")], {}),
        ([item("queued", "ACTIVE")], {"bert-queued": "nodes no longer exist"}),
        ([item("node", "DELETING")], {}),  # its deletion is pending
        # nodes in a second zone
        ([NODE, item("node", "READY", B, 1.0, name="other")], {"other": f"runs in {A}"}),
        ([item("node", "CREATING", B, 9.0, name="other"), NODE], {"other": f"runs in {A}"}),
        (  # of an interrupted race
            [
                item("queued", "WAITING_FOR_RESOURCES", A),
                item("queued", "WAITING_FOR_RESOURCES", B, 1.0, name="other"),
            ],
            {"other": f"waits for a TPU in {A}"},
        ),
        ([NODE, item("disk", "READY", B)], {"bert-disk": "no machine"}),
        # leftovers
        (
            [ACCOUNT, item("firewall")],
            {"bert-account": "not running", "bert-firewall": "not running"},
        ),
        ([item("address", "RESERVED", "europe-west4")], {"bert-address": "no machine"}),
    ],
)
def test_orphans_are_found(everything: list[InventoryItem], left: dict[str, str]) -> None:
    reasons = {orphan.item.name: orphan.reason for orphan in find_orphaned(everything)}
    assert reasons.keys() == left.keys()
    for name, reason in left.items():
        assert reason in reasons[name]


def test_stacks_are_checked_separately() -> None:
    """A node of one stack does not keep the disk of another from being orphaned."""
    other = item("disk", "READY", stack="gpt", name="gpt-data-0")
    assert [orphan.item for orphan in find_orphaned([NODE, other, ACCOUNT])] == [other]


def test_stack_from_description_and_account() -> None:
    for stack in ("bert", "a", "my-stack-2"):
        assert stack_of_description(ownership(stack)) == stack
    for text in ("", "Created by tpuctl for stack ", f"{ownership('bert')}!", ownership("Bert")):
        assert stack_of_description(text) is None
    assert (stack_of_account("bert-ko-tpu"), stack_of_account("a-stack-tpu")) == ("bert-ko", "a")
    assert stack_of_account("tpu") is None
    assert stack_of_account("bert-vm") is None


@pytest.mark.parametrize(
    ("everything", "text", "command"),
    [
        ([], "Nothing of the stack was found", "up"),
        ([BUCKET], "is not running", "up"),
        ([BUCKET, DISK], "other resources", "down"),
        ([item("node", "PREEMPTED"), BUCKET], "bert-node is PREEMPTED", "up"),
        ([item("node", "STOPPED")], "To start it", "up"),
        ([item("queued", "FAILED")], "To request again", "up"),
        ([item("queued", "WAITING_FOR_RESOURCES")], "still waiting", "up"),
        ([TPU, item("controller", "TERMINATED")], "bert-controller is TERMINATED", "up"),
        ([item("tpu", "PREEMPTED"), CONTROLLER, DISK], "bert-tpu is PREEMPTED", "up"),
        ([CONTROLLER], "has no TPU", "up"),
        ([TPU], "controller no longer exists", "up"),
        ([NODE, item("disk", "READY", B)], f"disk/{B}/bert-disk", "up"),
    ],
)
def test_advice(everything: list[InventoryItem], text: str, command: str) -> None:
    (advice,) = advice_on(everything)
    assert text in advice.text
    assert advice.command == command


@pytest.mark.parametrize("kind", ["node", "queued"])
def test_job_that_has_not_ended_is_resumed_with_its_machines(kind: str) -> None:
    state = "SUSPENDED" if kind == "queued" else "PREEMPTED"
    (advice,) = advice_on([item(kind, state), BUCKET], "plum")
    assert "resume job plum" in advice.text
    assert advice.command == "logs -f plum"


@pytest.mark.parametrize("everything", [[NODE, BUCKET], [TPU, CONTROLLER, DISK]])
def test_healthy_stack_needs_no_advice(everything: list[InventoryItem]) -> None:
    assert advice_on(everything) == ()


# Published, in US dollars an hour: v3-8 in europe-west4-a 8.80, on spot 2.244; n1-standard-1 there
# 0.052292; an address 0.005, on spot 0.0025; pd-standard 0.044 per GB per month of 730 hours.
@pytest.mark.parametrize(
    ("charged_item", "per_hour"),
    [
        (NODE, 8.8),
        (item("node", "READY", capacity="spot"), 2.244),
        (item("node", "READY", external_addresses=4), 8.82),
        (item("node", "REPAIRING"), 8.8),
        (item("tpu", "READY", capacity="preemptible"), 2.244),
        (CONTROLLER, 0.052292),
        (item("controller", "RUNNING", external_addresses=1), 0.057292),
        (DISK, 100 * 0.044 / 730),
        (item("disk", "in use", size_gb=100), 100 * 0.044 / 730),
        (item("address", "IN_USE", "europe-west4"), 0.005),
    ],
)
def test_charge_is_age_times_price(charged_item: InventoryItem, per_hour: float) -> None:
    charge = charge_of(charged_item, NOW)
    assert charge.hours == pytest.approx(2)
    assert charge.per_hour == pytest.approx(per_hour)
    assert charge.so_far == pytest.approx(2 * per_hour)
    assert charge.read == "mid-2026"
    assert is_charged(charged_item)


@pytest.mark.parametrize(
    "ended_item",
    [
        *(item("node", state) for state in ("PREEMPTED", "TERMINATED", "STOPPED")),
        item("tpu", "PREEMPTED"),
        item("controller", "TERMINATED"),
    ],
)
def test_ended_resources_cost_nothing_now_and_past_cost_is_unknown(
    ended_item: InventoryItem,
) -> None:
    charge = charge_of(ended_item, NOW)
    assert (charge.per_hour, charge.so_far) == (0, None)
    assert ended_item.state in charge.note
    assert not is_charged(ended_item)


def test_charges_depend_on_kind_and_state() -> None:
    for starting_item in (item("node", "CREATING"), item("controller", "STAGING")):
        charge = charge_of(starting_item, NOW)
        assert (charge.per_hour, charge.so_far) == (0, 0)
    for state in ("READY", "in use", "STOPPED", "CREATING"):
        assert is_charged(item("disk", state))
    charge = charge_of(BUCKET, NOW)
    assert (charge.per_hour, charge.so_far) == (None, None)
    assert charge.note == "$0.02 per GB per month of stored data"
    assert charge_of(item("node", "READY", hours=-1), NOW).so_far == 0
    assert charge_of(item("node", "READY", created=None), NOW).so_far is None


@pytest.mark.parametrize(
    "unpriced_item",
    [
        item("node", "READY", "us-central2-b"),
        item("node", "READY", detail="v99-8"),
        item("controller", "RUNNING", detail="c9-standard-4"),
        item("disk", "READY", detail="pd-future"),
    ],
)
def test_unpublished_price_is_unknown(unpriced_item: InventoryItem) -> None:
    charge = charge_of(unpriced_item, NOW)
    assert (charge.per_hour, charge.so_far) == (None, None)
    assert is_charged(unpriced_item)


def test_sums_report_completeness() -> None:
    def sums(*everything: InventoryItem) -> tuple[tuple[float, bool], tuple[float, bool]]:
        charges: tuple[Charge, ...] = charges_of(everything, NOW)
        return hourly(charges), so_far(charges)

    assert sums() == ((0, True), (0, True))
    assert sums(NODE, CONTROLLER, BUCKET, ACCOUNT) == (
        (pytest.approx(8.852292), True),
        (pytest.approx(2 * 8.852292), True),
    )
    older = item("node", "READY", hours=10)
    assert sums(older, CONTROLLER)[1] == (pytest.approx(88 + 2 * 0.052292), True)
    preempted = item("node", "PREEMPTED")
    assert sums(preempted, CONTROLLER) == (
        (pytest.approx(0.052292), True),
        (pytest.approx(2 * 0.052292), False),
    )
    assert sums(item("node", "READY", detail="v99-8"))[0] == (0, False)


def test_nodes_have_price_of_their_request() -> None:
    """A node does not show whether its request was for spot or flex-start."""
    request = item("queued", "ACTIVE", capacity="spot")
    node = item("node", "READY", request=request.name)
    alone = item("node", "READY", name="alone")
    other_zone = item("node", "READY", B, request=request.name, name="other_zone")
    by_name = {
        node_item.name: node_item for node_item in with_requests([node, request, alone, other_zone])
    }
    assert by_name["bert-node"].capacity == "spot"
    assert by_name["alone"].capacity == by_name["other_zone"].capacity == "on-demand"
    assert len(by_name) == 4

    plain = item("queued", "ACTIVE")
    for capacity in ("flex-start", "on-demand", None):
        (resolved, _) = with_requests([node, plain], capacity)  # type: ignore[arg-type]
        assert resolved.capacity == (capacity if capacity == "flex-start" else "on-demand")


def test_compute_engine_times_are_shown_in_utc() -> None:
    """Compute Engine's are in US Pacific time, those of all other APIs in UTC.

    The time is of an instance in GoogleCloudPlatform/k8s-config-connector at cdb85ecf,
    osconfigguestpolicy/_vcr_cassettes/tf.yaml.
    """
    created = time_of("2024-04-24T18:53:57.119-07:00")
    assert created is not None
    assert created.isoformat() == "2024-04-25T01:53:57.119000+00:00"
    assert time_of("") is None
