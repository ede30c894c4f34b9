"""Alternatives of a stack (`tpu.any_of`): what each is, where it may be, and which one exists."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.job_records import job_record
from tests.support.stacks import bert_stack, stack_from
from tpuctl.catalog import quota_limits
from tpuctl.cloud.clients import Cloud
from tpuctl.cloud.endpoints import Endpoint
from tpuctl.errors import Conflict, InvalidStack, NoCapacity, QuotaExceeded, Scope
from tpuctl.flows.jobs.submission import stack_of
from tpuctl.flows.machines.handover import stack_file
from tpuctl.flows.stack.capacity_history import by_capacity
from tpuctl.flows.stack.zones import (
    Refusal,
    home,
    may_continue,
    next_candidate,
    no_zone_error,
    raced,
)
from tpuctl.model.capacity.capacity_history import CapacityAttempt
from tpuctl.model.capacity.quota import alternative_lines, blocking_lines
from tpuctl.model.jobs.attempt import Attempt, Placement, Verdict
from tpuctl.model.jobs.job import JobRecord
from tpuctl.model.plan import Action, Change, Plan
from tpuctl.model.stack.candidates import Candidate
from tpuctl.model.stack.stack import Stack, load_stack
from tpuctl.model.status.inventory import InventoryItem
from tpuctl.resources.access.custom_roles import RecoveryRole
from tpuctl.resources.composition import resources_of
from tpuctl.resources.tpu.queued_resource import QueuedNodes
from tpuctl.resources.tpu.queued_resource_spec import queueing_policy
from tpuctl.resources.tpu.tpu_instance import TpuInstance
from tpuctl.resources.tpu.tpu_node import TpuNode

WEST, EAST = "us-west4-a", "us-east5-b"
NOW = datetime(2026, 7, 1, tzinfo=UTC)
HEAD = "bucket: {allow_egress: true}\n"
ALTERNATIVES = f"""{HEAD}
tpu:
  zones: [{EAST}]
  spot: true
  queue: true
  any_of:
    - {{type: v5litepod-8, zones: [{WEST}]}}
    - {{type: v6e-8, slices: 2}}
    - {{type: v6e-8, api: compute, queue: false}}
    - {{type: v5litepod-8, zones: [{WEST}], spot: false, queue: null}}
"""


@pytest.fixture
def stack(tmp_path: Path) -> Stack:
    return bert_stack(tmp_path, ALTERNATIVES)


def test_alternatives_take_what_they_leave_out_from_tpu(stack: Stack) -> None:
    places = [
        (str(place), at.accelerator.name, at.slices, at.is_spot, at.queue is not None)
        for place in stack.candidates
        if (at := stack.at(place))
    ]
    assert places == [
        (f"spot v5litepod-8 in {WEST}", "v5litepod-8", 1, True, True),
        (f"spot 2 x v6e-8 in {EAST}", "v6e-8", 2, True, True),
        (f"spot v6e-8 in {EAST} through Compute Engine", "v6e-8", 1, True, False),
        (f"on-demand v5litepod-8 in {WEST}", "v5litepod-8", 1, False, False),
    ]
    assert stack.bucket_location == "us-west4"
    assert stack.at(stack.candidates[1]).bucket_location == "us-west4"
    assert stack.file.tpu.type == "v5litepod-8"


def test_types_alone_are_alternatives(tmp_path: Path) -> None:
    stack = bert_stack(tmp_path, HEAD + "spot: true\ntpu: {any_of: [v5e-8, v6e-8, {spot: false}]}")
    types = [(each.type, each.capacity) for each in stack.alternatives]
    assert types == [("v5litepod-8", "spot"), ("v6e-8", "spot"), ("v5litepod-8", "on-demand")]


def test_cheapest_tpu_may_be_tried_first(tmp_path: Path) -> None:
    stack = bert_stack(
        tmp_path,
        f"{HEAD}tpu:\n  prefer: price\n  any_of: [v6e-8, v5e-8, {{type: v5e-8, spot: true}}]",
    )
    prices = [stack.at(place).price for place in stack.candidates]
    assert [place.alternative for place in stack.candidates] == [2, 1, 0]
    assert [price.per_hour for price in prices if price] == sorted(
        price.per_hour for price in prices if price
    )
    assert (stack.accelerator.name, stack.is_spot) == ("v5litepod-8", True)
    listed = bert_stack(tmp_path, f"{HEAD}tpu: {{type: v6e-8}}")
    assert stack.bucket_location == listed.bucket_location, "the bucket stays"


def test_zone_that_granted_last_may_be_tried_first(tmp_path: Path) -> None:
    zones = "us-east5-a", "us-east5-b", "us-central1-b", "us-east1-d"
    listed = ", ".join(zones)
    stack = bert_stack(
        tmp_path, f"{HEAD}tpu: {{type: v6e-8, spot: true, prefer: capacity, zones: [{listed}]}}"
    )
    now = datetime(2026, 7, 1, tzinfo=UTC)

    def attempt(zone: str, days: float, error: str = "", **more: object) -> CapacityAttempt:
        fields = {"time": now - timedelta(days=days), "zone": zone, "type": "v6e-8"}
        fields |= {"capacity": "spot", "seconds": 1.0, "error": error}
        return CapacityAttempt(**fields | more)  # type: ignore[arg-type]

    attempts = [
        attempt(zones[0], 1, "No capacity"),
        attempt(zones[0], 3),
        attempt(zones[1], 2, "No capacity"),
        attempt(zones[3], 0.5),
        attempt(zones[2], 9),  # long ago
        attempt(zones[2], 1, capacity="on-demand"),
    ]
    ordered = by_capacity(stack, attempts, now)
    assert ordered.zones == (zones[3], zones[2], zones[1], zones[0])
    assert ordered.zone == zones[3]
    assert by_capacity(stack, [], now).zones == zones


@pytest.mark.parametrize(
    ("tpu", "summary", "detail", "line"),
    [
        (
            "any_of:\n  - v5e-8\n  - {topology: 4x4}",
            "Topology incompatible with TPU type",
            "tpu.any_of.1: v5litepod-8 has 8 chips",
            "7",
        ),
        ("any_of:\n  - v5e-8\n  - v5e-9", "Unknown TPU type", "tpu.any_of.1: TPU type v5e-9", "7"),
        (
            f"type: v5e-8\n  any_of:\n  - zones: [{WEST}]\n  - zones:\n    - {WEST}\n    - x",
            "TPU type not offered in zone",
            "tpu.any_of.1: x: unknown zone",
            "10",
        ),
        (
            f"zones: [{WEST}]\n  any_of:\n  - v5e-8\n  - v6e-1\n  - v5e-8",
            "Duplicate alternative",
            "tpu.any_of.2 and tpu.any_of.0 are both on-demand v5litepod-8",
            "9",
        ),
        ("startup_script: x\n  any_of: [v5e-8, v6e-8]", "No such file", "tpu.startup_script", "5"),
        ("kind: node\n  any_of: [v2-8, v3-8]", "Not for TPU nodes", "tpu.any_of is only", "6"),
        ("any_of:\n  - v5e-8\n  - {queu: 1}", "Unknown key", "tpu.any_of.1.queu is not", "7"),
        ("any_of: v5e-8", "Invalid value", "tpu.any_of must be a list", "5"),
    ],
)
def test_problem_names_the_alternative(
    tmp_path: Path, tpu: str, summary: str, detail: str, line: str
) -> None:
    path = tmp_path / "tpuctl.yaml"
    path.write_text(f"stack: bert\nproject: my-project\n{HEAD}tpu:\n  {tpu}\n", "utf-8")
    with pytest.raises(InvalidStack) as caught:
        load_stack(path)
    problems = [each for each in caught.value.diagnostics if each.summary == summary]
    assert len(problems) == 1, caught.value.diagnostics
    assert problems[0].detail.startswith(detail)
    assert problems[0].where.endswith(f":{line}")


def test_alternative_in_another_region_needs_consent(tmp_path: Path) -> None:
    path = tmp_path / "tpuctl.yaml"
    tpu = f"  any_of:\n  - {{type: v5e-8, zones: [{WEST}]}}\n  - {{type: v6e-8, zones: [{EAST}]}}"
    path.write_text(f"stack: bert\nproject: my-project\ntpu:\n{tpu}\n", "utf-8")
    with pytest.raises(InvalidStack) as caught:
        load_stack(path)
    (problem,) = caught.value.diagnostics
    assert problem.summary == "Bucket outside the TPU's region"
    assert "us-east5, the bucket is in us-west4" in problem.detail


def node(zone: str, type_name: str, state: str = "READY", **more: object) -> InventoryItem:
    fields = {"kind_class": TpuNode, "name": "bert-tpu", "stack": "bert", "zone": zone}
    return InventoryItem(**fields | {"detail": type_name, "state": state} | more)  # type: ignore[arg-type]


def request(zone: str, type_name: str, **more: object) -> InventoryItem:
    fields = {"kind_class": QueuedNodes, "name": "bert-queue", "state": "ACTIVE"}
    return node(zone, type_name, **fields | more)  # type: ignore[arg-type]


OF_REQUEST = {"request": "bert-queue"}


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([], 0),
        ([node(WEST, "v5litepod-8")], 3),  # on demand
        (
            [
                node(WEST, "v5litepod-8", **OF_REQUEST),
                request(WEST, "v5litepod-8", capacity="spot"),
            ],
            0,
        ),
        ([node(EAST, "v6e-8", kind_class=TpuInstance, capacity="spot")], 2),
        ([node(EAST, "v6e-8", name="bert-tpu-1", **OF_REQUEST)], 1),
        ([request(EAST, "v6e-8", state="WAITING_FOR_RESOURCES", capacity="spot", count=2)], 1),
        ([node(EAST, "v6e-8", "TERMINATED", kind_class=TpuInstance)], 2),  # recreated as it was
        ([node(WEST, "v5litepod-8", "PREEMPTED", capacity="spot")], 0),
    ],
)
def test_tpu_belongs_to_the_alternative_that_it_fits(
    stack: Stack, items: list[InventoryItem], expected: int
) -> None:
    assert home(stack, items).alternative == expected


def test_tpu_of_no_alternative_is_not_changed(stack: Stack) -> None:
    with pytest.raises(Conflict, match=r"Node of no alternative: .* \(v6e-8\)"):
        home(stack, [node(EAST, "v6e-8")])  # one instead of two slices


def test_job_knows_the_alternative_of_each_attempt(stack: Stack) -> None:
    record = job_record(zone=WEST, accelerator="v5litepod-8", runtime="v2-alpha-tpuv5-lite")
    assert stack_of(record, stack).candidate.alternative == 0

    def again(capacity: str, **more: str) -> JobRecord:
        placement = Placement(node="bert-tpu", capacity=capacity, **{"zone": WEST} | more)
        verdict = Verdict(kind="preemption", name="preempted", cause="", at=NOW)
        return record.of(Attempt(number=2, placement=placement, verdict=verdict, started=NOW))

    assert stack_of(again("on-demand"), stack).candidate.alternative == 3
    on_compute = again("spot", zone=EAST, accelerator="v6e-8", runtime="project/image")
    assert stack_of(on_compute, stack).candidate == Candidate(EAST, "compute", 2)


def resumable(folder: Path, resume: str) -> Stack:
    tpu = f"zones: [{WEST}], any_of: [{{type: v5e-8, spot: true}}, v5e-4, v5e-8]"
    return bert_stack(folder, f"tpu: {{{tpu}}}\njob: {{resume: {resume}}}\ncontroller: {{}}")


@pytest.mark.parametrize(("resume", "expected"), [("same", [0, 2]), ("any", [0, 1, 2])])
def test_job_resumes_on_the_same_type_or_any(
    tmp_path: Path, resume: str, expected: list[int]
) -> None:
    stack = resumable(tmp_path, resume)
    assert [place.alternative for place in stack.resuming.candidates] == expected
    on_demand = stack.at(stack.candidates[2])
    assert [place.alternative for place in on_demand.resuming.candidates] == expected
    if resume == "same":
        with pytest.raises(Conflict, match="Node of another alternative"):
            home(stack.resuming, [node(WEST, "v5litepod-4")])


@pytest.mark.parametrize(("resume", "restarts"), [("same", 2), ("any", 3)])
def test_controller_may_create_all_alternatives(tmp_path: Path, resume: str, restarts: int) -> None:
    """The one in use first; which of them may restart a job is decided there."""
    stack = resumable(tmp_path, resume)
    file = stack_file(stack.at(stack.candidates[2]), "default", "", "")
    (there := tmp_path / "there").mkdir()
    handed = stack_from(there, json.dumps(file))
    assert [tpu.capacity for tpu in handed.alternatives] == ["on-demand", "spot", "on-demand"]
    assert len(handed.resuming.candidates) == restarts
    assert handed.accelerator == stack.accelerator
    assert handed.zones == (WEST,)


def test_controller_may_create_alternatives_of_both_apis(tmp_path: Path) -> None:
    """Also a group, which needs a template, after a single TPU of the other API."""
    tpus = "any_of: [{type: v6e-4}, {type: v6e-16, api: compute}]"
    text = f"{HEAD}controller: {{}}\ntpu: {{zones: [{EAST}, us-east5-a], {tpus}}}\n"
    stack = bert_stack(tmp_path, text)
    everything = {(each.zone, each.label, each.api) for each in stack.candidates}
    assert len(everything) == 4
    for place in stack.candidates:
        file = stack_file(stack.at(place), "default", "", "")
        (there := tmp_path / f"{place.zone}-{place.api}").mkdir()
        handed = stack_from(there, json.dumps(file))
        assert not handed.problems
        assert (handed.candidate.zone, handed.api) == (place.zone, place.api)
        assert {(each.zone, each.label, each.api) for each in handed.candidates} == everything
    cloud = Cloud(Endpoint("local", "http://127.0.0.1:9", "token"), "my-project")
    (role,) = (each for each in resources_of(stack, cloud) if isinstance(each, RecoveryRole))
    assert {"tpu.nodes.create", "compute.instanceTemplates.create"} <= {*role.included}


def test_alternatives_of_other_sizes_cannot_resume_a_job(tmp_path: Path) -> None:
    with pytest.raises(InvalidStack, match="they have 1 worker in 1 slice, 4 workers in 1 slice"):
        bert_stack(tmp_path, f"{HEAD}tpu: {{any_of: [v5e-8, v5e-16]}}\njob: {{resume: any}}")


def test_one_alternative_of_each_zone_and_api_takes_part_in_a_race(tmp_path: Path) -> None:
    alternatives = (
        "[{type: v5e-8, spot: true}, v5e-4, {type: v5e-1, queue: false, zones: [us-east5-a]}]"
    )
    tpu = f"zones: [{WEST}, us-west4-b], queue: true, any_of: {alternatives}"
    stack = bert_stack(tmp_path, f"{HEAD}tpu: {{{tpu}}}")

    def entrants(*items: InventoryItem) -> list[tuple[str, int]]:
        return [(place.zone, place.alternative) for place in raced(stack, items)]

    unqueued = ("us-east5-a", 2)
    assert entrants() == [(WEST, 0), ("us-west4-b", 0), unqueued]
    assert entrants(request(WEST, "v5litepod-4")) == [("us-west4-b", 0), (WEST, 1), unqueued]


IN_AN_HOUR = {"valid_until_time": NOW + timedelta(hours=1)}
TWENTY_MINUTES = {"valid_until_duration": timedelta(minutes=20)}


@pytest.mark.parametrize(
    ("queue", "deadline", "expected"),
    [
        ("true", "1h", IN_AN_HOUR),
        ("{valid_until: 6h}", "1h", IN_AN_HOUR),
        ("{valid_until: 6h}", "2026-07-01T03:00:00+02:00", IN_AN_HOUR),
        ("{valid_until: 20m}", "1h", TWENTY_MINUTES),
        ("true", "2026-06-30T12:00:00Z", {}),  # nothing is requested
    ],
)
def test_requests_are_valid_until_the_deadline_of_the_search(
    tmp_path: Path, queue: str, deadline: str, expected: dict[str, object]
) -> None:
    tpu = f"queue: {queue}, deadline: '{deadline}', any_of: [v5e-8, v6e-8]"
    stack = bert_stack(tmp_path, f"{HEAD}tpu: {{{tpu}}}").bounded(NOW)
    assert stack.deadline is not None
    assert [queueing_policy(each) for each in stack.by_alternative] == [expected] * 2
    later = stack.bounded(NOW + timedelta(minutes=30))
    assert later.deadline == stack.deadline, "it does not move"


def test_error_tells_what_the_deadline_left_untried(stack: Stack) -> None:
    error = NoCapacity("No capacity", "sold out")
    refusals = [Refusal(stack.candidates[0], error)]
    text = str(no_zone_error(refusals, stack, stack.candidates, is_over=True))
    assert text.count("not tried, because tpu.deadline has passed") == 3


def test_quota_of_another_alternative_may_have_room(stack: Stack) -> None:
    first, second, *_, last = stack.candidates
    for scope in (Scope.REGION, Scope.PROJECT):
        error = QuotaExceeded("Quota exceeded")
        error.scope = scope
        assert may_continue(error, stack.candidates)
        assert next_candidate(stack.candidates, [Refusal(first, error)]) == second
    refused = NoCapacity("No capacity")
    refused.scope = Scope.ZONE
    refusals = [Refusal(place, refused) for place in stack.candidates[:-1]]
    assert next_candidate(stack.candidates, refusals) == last


def test_plan_fits_if_an_alternative_has_quota(stack: Stack) -> None:
    plan = Plan((Change("queued/bert-queue", Action.CREATE, ""),))
    limits = {
        (limit.id, zone): 8.0
        for place in stack.candidates
        for limit in quota_limits(stack.at(place).accelerator, stack.at(place).is_spot, place.api)
        for zone in (place.zone, place.zone[:-2])
    }
    arguments = (stack, plan, [], limits)

    def blocking(*places: Candidate) -> list[float]:
        lines = blocking_lines(*arguments, None, places, new_nodes=1)
        return [line.added for line in lines]

    one_slice, two_slices, compute, _ = stack.candidates
    assert blocking(one_slice) == []
    assert blocking(two_slices) == [16]
    assert blocking(two_slices, compute) == []
    lines = alternative_lines(*arguments, stack.candidates)
    assert [(line.place, line.added) for line in lines if line.quota] == [
        (EAST, 16),
        ("us-east5", 16),
        ("us-east5", 8),
        (WEST, 8),
        ("us-west4", 8),
    ]
