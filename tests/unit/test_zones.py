"""The zone of a stack, the next one to try, and the error when none is left."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.stacks import bert_stack
from tpuctl.cloud.classification import classify
from tpuctl.errors import (
    Conflict,
    Denied,
    NoCapacity,
    NotFound,
    QuotaExceeded,
    Scope,
    TpuctlError,
    Transient,
)
from tpuctl.flows.stack.zones import (
    Refusal,
    candidates_to_try,
    home,
    may_continue,
    next_candidate,
    no_zone_error,
    widest_error,
)
from tpuctl.model.plan import Action, Change, Plan
from tpuctl.model.stack.candidates import Candidate
from tpuctl.model.stack.stack import Stack, load_stack
from tpuctl.model.status.inventory import InventoryItem
from tpuctl.resources.machines.disk import DataDisk
from tpuctl.resources.tpu.queued_resource import QueuedNodes
from tpuctl.resources.tpu.tpu_instance import TpuInstance
from tpuctl.resources.tpu.tpu_node import TpuNode

A, B, C = "us-west4-a", "us-west4-b", "europe-west4-b"


@pytest.fixture
def stack(tmp_path: Path) -> Stack:
    return load(tmp_path, "data_disks: [{size_gb: 20}]")


def load(folder: Path, tpu: str) -> Stack:
    return bert_stack(
        folder,
        "bucket: {allow_egress: true}\n"
        f"tpu: {{type: v5litepod-8, zones: [{A}, {B}, {C}], {tpu}}}",
    )


def at(*zones: str) -> tuple[Candidate, ...]:
    return tuple(Candidate(zone) for zone in zones)


def node(zone: str, state: str = "READY") -> InventoryItem:
    return InventoryItem(TpuNode, "bert-tpu", "bert", zone, state)


def request(zone: str, state: str) -> InventoryItem:
    return InventoryItem(QueuedNodes, "bert-queue", "bert", zone, state)


def disk(zone: str, name: str = "bert-data-0") -> InventoryItem:
    return InventoryItem(DataDisk, name, "bert", zone, "READY")


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([], A),
        ([node(B)], B),
        ([node(B, "PREEMPTED")], B),  # recreated in its zone
        ([node(C, "PREEMPTED"), node(B, "REPAIRING")], B),
        ([node(A, "PREEMPTED"), node(B, "STOPPED")], B),
        ([node(A, "CREATING"), node(B, "REPAIRING")], B),
        ([node(A, "PREEMPTED"), node(B, "CREATING")], B),  # being created by another `up`
        ([node(A, "CREATING"), node(B)], B),
        ([node(C), node(B)], B),
        ([request(B, "WAITING_FOR_RESOURCES")], B),
        ([request(A, "FAILED"), request(C, "ACTIVE")], C),
        ([request(A, "FAILED"), request(B, "PROVISIONING")], B),
        ([disk(B)], B),
        ([disk(A), node(C)], C),  # a leftover disk of a killed attempt
        ([disk(B), node(A, "PREEMPTED")], B),
        ([disk(B, "bert-controller")], A),  # a controller's boot disk has no data
        ([node("us-east5-b", "CREATING")], A),  # an attempt with an older stack file
        ([node("us-east5-b", "PREEMPTED")], A),
        ([request("us-east5-b", "WAITING_FOR_RESOURCES")], A),
    ],
)
def test_home_zone(stack: Stack, items: list[InventoryItem], expected: str) -> None:
    assert home(stack, items) == Candidate(expected)
    assert home(stack, items[::-1]) == Candidate(expected)


@pytest.mark.parametrize(
    "there",
    [
        node("us-east5-b"),
        node("us-east5-b", "STOPPED"),
        node("us-east5-b", "REPAIRING"),
        request("us-east5-b", "ACTIVE"),
        disk("us-east5-b"),
    ],
)
def test_resources_in_use_in_other_zone_are_kept(stack: Stack, there: InventoryItem) -> None:
    with pytest.raises(Conflict, match=there.address):
        home(stack, [there])
    # A running node is not affected by a disk.
    assert home(stack, [disk("us-east5-b"), node(B)]) == Candidate(B)


def refusal(zone: str, kind: type[TpuctlError], scope: Scope) -> Refusal:
    error = kind("Refused by Google", f"no more in {zone}")
    error.scope = scope
    return Refusal(Candidate(zone), error)


def test_zones_are_tried_in_order_and_regional_failures_skip_those_of_the_region() -> None:
    first = refusal(A, NoCapacity, Scope.ZONE)
    assert next_candidate(at(A, B, C), [first]) == Candidate(B)
    second = refusal(B, NoCapacity, Scope.ZONE)
    assert next_candidate(at(A, B, C), [first, second]) == Candidate(C)
    assert next_candidate(at(A, B), [first, second]) is None
    assert next_candidate(at(B, A, C), [second, first]) == Candidate(C), (
        "regardless of the order of failures"
    )
    refused = refusal(A, QuotaExceeded, Scope.REGION)
    assert next_candidate(at(A, B, C), [refused]) == Candidate(C)
    assert next_candidate(at(A, B), [refused]) is None
    assert next_candidate(at(A, A), [refusal(A, NoCapacity, Scope.ZONE)]) is None


def test_widest_failure_is_reported() -> None:
    scopes = (NoCapacity, Scope.ZONE), (QuotaExceeded, Scope.REGION)
    scopes += (Denied, Scope.PROJECT), (Transient, Scope.FATAL)
    zone, region, project, fatal = (refusal(A, *scope).error for scope in scopes)
    assert widest_error({"node/a": zone}) is zone
    assert widest_error({"node/a": zone, "disk/b": region}) is region
    assert widest_error({"disk/b": project, "node/a": zone, "c/c": region}) is project
    assert widest_error({"a/a": zone, "b/b": fatal, "c/c": project}) is fatal


def test_final_error_lists_all_zones(stack: Stack) -> None:
    refusals = [refusal(A, QuotaExceeded, Scope.REGION), refusal(C, NoCapacity, Scope.ZONE)]
    error = no_zone_error(refusals, stack, stack.candidates)
    assert error.exit_code == 75, "a later retry may succeed"
    detail, hint = error.diagnostics[0].detail, error.diagnostics[0].hint
    lines = detail.splitlines()[1:]
    assert [line.partition(":")[0] for line in lines] == [A, C, B]
    assert "not tried" in lines[2]
    assert "queue: true" in hint
    only_quota = [refusal(zone, QuotaExceeded, Scope.ZONE) for zone in (A, B, C)]
    assert no_zone_error(only_quota, stack, stack.candidates).exit_code == 76
    denied = [refusal(zone, Denied, Scope.ZONE) for zone in (A, B, C)]
    assert no_zone_error(denied, stack, stack.candidates).exit_code == 77


def test_final_hint_is_deduplicated(stack: Stack) -> None:
    closed, expired = "Name another zone:\n    tpuctl zones", "See it:\n    tpuctl quota"
    denied = Denied("Zone not allowed", "x", hint=closed)
    quota = QuotaExceeded("Quota", "x", hint=expired)
    full = NoCapacity("No capacity", "x", hint="Try again later:\n    tpuctl up")
    for error in (denied, quota, full):
        error.scope = Scope.ZONE
    pairs = ((A, denied), (B, denied), (C, quota))
    refusals = [Refusal(Candidate(zone), error) for zone, error in pairs]
    hint = no_zone_error(refusals, stack, stack.candidates).diagnostics[0].hint
    assert hint.startswith(f"For {A}, {B}:\n{closed}\nFor {C}:\n{expired}\nTry again later")
    refusals = [Refusal(Candidate(zone), full) for zone in (A, B, C)]
    hint = no_zone_error(refusals, stack, stack.candidates).diagnostics[0].hint
    assert "For " not in hint, "the summary already names it"


def test_single_zone_error_is_unchanged(tmp_path: Path, stack: Stack) -> None:
    odd = refusal(B, NotFound, Scope.ZONE)  # kinds of errors have different constructors
    assert isinstance(no_zone_error([odd], stack, at(B)), NotFound)
    path = tmp_path / "tpuctl.yaml"
    text = f"project: {{id: my-project}}\ntpu: {{type: v5litepod-8, zones: [{A}]}}\n"
    path.write_text(text, "utf-8")
    refused = refusal(A, NoCapacity, Scope.ZONE)
    assert no_zone_error([refused], load_stack(path), at(A)) is refused.error


def planned(*disks: Action) -> Plan:
    changes = [Change(f"disk/bert-data-{i}", action, "") for i, action in enumerate(disks)]
    return Plan((*changes, Change("node/bert-tpu", Action.CREATE, "")))


def test_existing_data_disks_pin_zone(tmp_path: Path) -> None:
    """In another zone, new disks would be created, and these deleted with their data."""
    stack = load(tmp_path, "data_disks: [{size_gb: 20}, {size_gb: 20}]")
    assert candidates_to_try(stack, planned(Action.CREATE, Action.CREATE)) == at(A, B, C)
    bound = stack.in_zone(B)
    assert candidates_to_try(bound, planned(Action.NOTHING, Action.NOTHING)) == at(B)
    assert candidates_to_try(bound, planned(Action.CREATE, Action.NOTHING)) == at(B)
    existing = load(tmp_path, "data_disks: [{name: mine}]")
    there = Plan((Change("disk/mine", Action.NOTHING, ""),))
    assert candidates_to_try(existing, there) == at(A, B, C), (
        "the user's disk may be in any of them"
    )

    error = no_zone_error([refusal(B, NoCapacity, Scope.ZONE)], bound, at(B))
    assert isinstance(error, NoCapacity)
    assert error.scope is Scope.ZONE
    assert "data disks are in " + B in error.diagnostics[0].detail
    assert "tpuctl down" in error.diagnostics[0].hint


E1, E2 = Candidate("us-east5-a"), Candidate("us-east5-b")
C1, C2 = Candidate("us-east5-a", "compute"), Candidate("us-east5-b", "compute")


@pytest.mark.parametrize(
    ("scope", "expected"), [(Scope.ZONE, E2), (Scope.REGION, C1), (Scope.PROJECT, C1)]
)
def test_other_api_has_its_own_capacity_and_quota(scope: Scope, expected: Candidate) -> None:
    error = QuotaExceeded("Quota exceeded", "no more")
    error.scope = scope
    candidates = (E1, E2, C1, C2)
    assert may_continue(error, candidates)
    assert next_candidate(candidates, [Refusal(E1, error)]) == expected
    assert may_continue(error, (E1, E2)) == (scope is not Scope.PROJECT)


def compute_stack(folder: Path, api: str) -> Stack:
    path = folder / "tpuctl.yaml"
    tpu = f"{{type: v6e-4, zones: [us-east5-a, us-east5-b], api: {api}}}"
    path.write_text(f"stack: bert\nproject: {{id: my-project}}\ntpu: {tpu}\n", "utf-8")
    return load_stack(path)


def instance(zone: str, state: str = "READY") -> InventoryItem:
    return InventoryItem(TpuInstance, "bert-tpu", "bert", zone, state)


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([], E1),
        ([instance("us-east5-b")], C2),
        ([instance("us-east5-a", "PENDING")], C1),
        ([node("us-east5-a", "CREATING"), instance("us-east5-b")], C2),
        ([node("us-east5-b"), instance("us-east5-a", "PENDING")], E2),
    ],
)
def test_home_is_a_zone_of_an_api(
    tmp_path: Path, items: list[InventoryItem], expected: Candidate
) -> None:
    stack = compute_stack(tmp_path, "auto")
    assert stack.candidates == (E1, E2, C1, C2)
    assert home(stack, items) == expected


def test_node_of_other_api_is_kept_and_the_api_that_failed_named(tmp_path: Path) -> None:
    with pytest.raises(Conflict, match="through Compute Engine") as caught:
        home(compute_stack(tmp_path, "compute"), [node("us-east5-a")])
    assert "api: auto" in caught.value.diagnostics[0].hint
    stack = compute_stack(tmp_path, "auto")
    quota = QuotaExceeded("Quota exceeded", "no more chips in the project")
    quota.scope = Scope.PROJECT
    stockout = NoCapacity("No capacity", "no more machines")
    stockout.scope = Scope.ZONE
    refusals = [Refusal(E1, quota), Refusal(C1, stockout), Refusal(C2, stockout)]
    error = no_zone_error(refusals, stack, stack.candidates)
    assert error.exit_code == 75
    assert "us-east5-a through Compute Engine: No capacity" in str(error)
    assert "us-east5-b: not tried, because its API failed" in str(error)


def test_advice_without_capacity_depends_on_the_api(tmp_path: Path) -> None:
    stockout = classify("UNKNOWN", "There is no more capacity in the zone", subject="instance/x")
    for api, advice in (("tpu", "queue: true"), ("compute", "capacity: flex-start")):
        stack = replace(compute_stack(tmp_path, api), candidates=(Candidate("us-east5-a", api),))
        error = no_zone_error([Refusal(stack.candidate, stockout)], stack, stack.candidates)
        assert isinstance(error, NoCapacity)
        assert advice in error.diagnostics[0].hint.replace("\n", " ")
