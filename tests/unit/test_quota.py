"""The quota of a plan: usage, additions and remainder of each limit, without a query."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.locations import REGION, ZONE
from tests.support.stacks import bert_stack
from tpuctl.catalog import accelerator_types, quota_limits
from tpuctl.flows.stack.quota import allowed_amounts, count_new_nodes, name_words
from tpuctl.model.capacity.quota import (
    QuotaLine,
    QuotaReport,
    Region,
    compute_lines,
    other_pool,
    tpu_lines,
)
from tpuctl.model.plan import Action, Change, Plan
from tpuctl.model.stack.stack import Stack
from tpuctl.model.status.inventory import InventoryItem
from tpuctl.resources.machines.controller import Controller
from tpuctl.resources.tpu.queued_resource import QueuedNodes
from tpuctl.resources.tpu.tpu_instance import TpuInstance
from tpuctl.resources.tpu.tpu_node import TpuNode
from tpuctl.resources.tpu.tpu_node_v1 import RemoteNode

IN_ZONE, IN_REGION = "TPUV3sPerProjectPerZoneForTPUAPI", "TPUV3sPerProjectPerRegionForTPUAPI"
CREATE, DELETE, NOTHING = Action.CREATE, Action.DELETE, Action.NOTHING


def load(folder: Path, text: str = f"tpu: {{type: v3-8, zones: [{ZONE}]}}") -> Stack:
    return bert_stack(folder, text)


def plan(**changes: Action) -> Plan:
    """`node_bert_tpu=CREATE` is the address node/bert-tpu."""
    return Plan(
        tuple(
            Change(address.replace("_", "/", 1).replace("_", "-"), action, "")
            for address, action in changes.items()
        )
    )


def node(stack: str = "", zone: str = ZONE, **more: object) -> InventoryItem:
    fields: dict[str, object] = {
        "kind_class": TpuNode,
        "name": f"{stack or 'x'}-tpu",
        "detail": "v3-8",
        "state": "READY",
    }
    return InventoryItem(**(fields | {"stack": stack, "zone": zone} | more))  # type: ignore[arg-type]


def lines(
    stack: Stack, the_plan: Plan, items: list[InventoryItem], **limits: float | None
) -> list[QuotaLine]:
    ids = {"zone": (IN_ZONE, ZONE), "region": (IN_REGION, REGION)}
    return list(
        tpu_lines(
            stack,
            the_plan,
            items,
            {ids[key]: at for key, at in limits.items()},
            new_nodes=count_new_nodes(stack, the_plan),
        )
    )


def test_new_node_adds_to_usage_and_an_existing_one_nothing(tmp_path: Path) -> None:
    stack = load(tmp_path)
    items = [node(), node("gpt"), node("gpt", "europe-west4-b"), node("far", "us-central1-a")]
    zone, region = lines(stack, plan(node_bert_tpu=CREATE), items, zone=40, region=64)
    assert (zone.limit, zone.place, zone.unit) == (IN_ZONE, ZONE, "cores")
    assert (zone.used, zone.added, zone.allowed, zone.left) == (16, 8, 40, 16)
    assert (region.limit, region.place) == (IN_REGION, REGION)
    assert (region.used, region.added, region.left) == (24, 8, 32)
    assert not zone.is_short
    (zone,) = lines(load(tmp_path), plan(node_bert_tpu=NOTHING), [node("bert")], zone=8)
    assert (zone.used, zone.added, zone.left, zone.is_short) == (8, 0, 0, False)
    (zone,) = lines(load(tmp_path), plan(node_bert_tpu=NOTHING), [node("bert")], zone=4)
    assert not zone.is_short, "existing usage is not part of this plan"


@pytest.mark.parametrize(
    ("kinds", "used"),
    [
        ({"state": "PREEMPTED"}, 8),  # until it is deleted
        ({"kind_class": RemoteNode}, 8),
        ({"detail": "v3-32"}, 0),  # pods have a separate limit
        ({"detail": "v2-8"}, 0),
        ({"detail": "from-the-future"}, 0),
        ({"capacity": "spot"}, 0),
        ({"capacity": "preemptible"}, 0),
        ({"capacity": "reserved"}, 8),
        ({"kind_class": QueuedNodes, "state": "FAILED", "count": 3}, 24),
        ({"kind_class": QueuedNodes, "state": "SUSPENDED"}, 8),
        ({"request": "a-request"}, 0),  # counted with its request
        ({"kind_class": Controller}, 0),
    ],
)
def test_usage_counts_against_limit(tmp_path: Path, kinds: dict[str, object], used: int) -> None:
    the_plan = plan(node_bert_tpu=CREATE)
    (zone,) = lines(load(tmp_path), the_plan, [node("gpt", **kinds)], zone=40)
    assert zone.used == used


def test_deleted_node_frees_quota(tmp_path: Path) -> None:
    """A preempted node is recreated in its zone; in an abandoned zone it is deleted."""
    stack = load(tmp_path)
    preempted = node("bert", state="PREEMPTED")
    (zone,) = lines(stack, plan(node_bert_tpu=CREATE), [preempted], zone=8)
    assert (zone.used, zone.added, zone.left) == (0, 8, 0)
    there = node("bert", "europe-west4-b")
    addresses = {"node_bert_tpu": CREATE}
    away = Plan((*plan(**addresses), Change(there.address, DELETE, "")))
    (_, region) = lines(stack, away, [there], zone=8, region=8)
    assert (region.used, region.left) == (0, 0)
    (_, region) = lines(stack, plan(**addresses), [there], zone=8, region=8)
    assert (region.used, region.left, region.is_short) == (8, -8, True)
    same_name = node("gpt", state="PREEMPTED", name="bert-tpu")
    (zone,) = lines(stack, plan(node_bert_tpu=CREATE), [same_name], zone=8)
    assert zone.used == 8, "another stack's node is not deleted"


def test_recreated_request_frees_quota(tmp_path: Path) -> None:
    text = f"tpu: {{type: v3-8, zones: [{ZONE}], capacity: spot, queue: {{nodes: 2}}}}"
    stack = load(tmp_path, text)
    spot = "TPUV3sPreemptiblePerProjectPerZoneForTPUAPI"
    request = node(
        "bert", kind_class=QueuedNodes, name="bert-queue", state="FAILED", count=2, capacity="spot"
    )
    items = [request, node("bert", name="bert-tpu-0", request="bert-queue", capacity="spot")]
    for action, used, added in ((CREATE, 0, 16), (NOTHING, 16, 0)):
        limits = {(spot, ZONE): 20.0}
        the_plan = plan(queued_bert_queue=action)
        (line, *_) = tpu_lines(
            stack, the_plan, items, limits, new_nodes=count_new_nodes(stack, the_plan)
        )
        assert (line.limit, line.used, line.added) == (spot, used, added)


def test_unlimited_quota_is_omitted_and_unknown_is_reported(tmp_path: Path) -> None:
    stack, the_plan = load(tmp_path), plan(node_bert_tpu=CREATE)
    assert lines(stack, the_plan, [], zone=None, region=None) == []
    (unknown,) = lines(stack, the_plan, [node()])
    assert (unknown.place, unknown.used, unknown.added) == (ZONE, 8, 8)
    assert (unknown.allowed, unknown.left, unknown.is_short) == (None, None, False)
    (none,) = lines(stack, the_plan, [], zone=0)
    assert (none.left, none.is_short) == (-8, True)


MUCH = dict.fromkeys(
    ("CPUS", "N2_CPUS", "IN_USE_ADDRESSES", "DISKS_TOTAL_GB", "SSD_TOTAL_GB"), (1000.0, 10.0)
)


@pytest.mark.parametrize(
    ("text", "the_plan", "added"),
    [
        ("tpu: {type: v3-8}", plan(node_bert_tpu=CREATE), {"IN_USE_ADDRESSES": 1}),
        ("tpu: {type: v3-32}", plan(node_bert_tpu=CREATE), {"IN_USE_ADDRESSES": 4}),
        ("tpu: {type: v3-8}", plan(node_bert_tpu=NOTHING), {}),
        ("tpu: {type: v3-8}\nnetwork: {ssh: internal}", plan(node_bert_tpu=CREATE), {}),
        (
            "tpu: {type: v3-8, queue: {nodes: 2}}",
            plan(queued_bert_queue=CREATE),
            {"IN_USE_ADDRESSES": 2},
        ),
        (
            "tpu: {type: v3-8, kind: node}",
            plan(tpu_bert_tpu=CREATE, controller_bert_controller=CREATE),
            {"CPUS": 1, "DISKS_TOTAL_GB": 50, "IN_USE_ADDRESSES": 1},
        ),
        (
            "tpu: {type: v3-8, data_disks: [{size_gb: 20}, {size_gb: 30, type: pd-standard}, "
            "{size_gb: 40, type: hyperdisk-balanced}, {name: mine}]}\n"
            "controller: {machine_type: n2-standard-4, disk_type: pd-ssd, disk_gb: 60}",
            plan(
                controller_bert_controller=CREATE,
                disk_bert_data_0=CREATE,
                disk_bert_data_1=CREATE,
                disk_bert_data_2=CREATE,
                disk_mine=NOTHING,
            ),
            {"N2_CPUS": 4, "SSD_TOTAL_GB": 80, "DISKS_TOTAL_GB": 30, "IN_USE_ADDRESSES": 1},
        ),
        (
            "tpu: {type: v3-8, data_disks: [{size_gb: 20}, {size_gb: 30}]}",
            plan(disk_bert_data_0=NOTHING, disk_bert_data_1=CREATE),
            {"SSD_TOTAL_GB": 30},
        ),
    ],
)
def test_compute_engine_usage_of_plan(
    tmp_path: Path, text: str, the_plan: Plan, added: dict[str, float]
) -> None:
    stack = load(tmp_path, text)
    new_nodes = count_new_nodes(stack, the_plan)
    lines = compute_lines(stack, the_plan, Region(REGION, MUCH), new_nodes=new_nodes)
    assert {line.limit: line.added for line in lines} == added
    assert all(line.left == 990 - line.added for line in lines)
    assert all(line.place == REGION for line in lines)


def test_shortfall_names_limit_and_hint() -> None:
    short = QuotaLine(IN_ZONE, ZONE, "cores", 16, 16, 8)
    enough = QuotaLine("CPUS", REGION, "", 10, 2, 8)
    (diagnostic,) = QuotaReport((short, enough)).shortfalls
    assert IN_ZONE in diagnostic.detail
    assert ZONE in diagnostic.detail
    assert "16 used, 8 more" in diagnostic.detail
    assert "tpuctl orphans" in diagnostic.hint
    # Metric names as used in public programs.
    same = {
        "TPUV5sPreemptibleLitepodPerProjectPerZoneForTPUAPI": "tpu-v5s-litepod-preemptible",
        "TPUV5sPreemptibleLitepodServingPerProjectPerZoneForTPUAPI": (
            "tpu-v5s-litepod-serving-preemptible"
        ),
        "TPUV5PPreemptiblePerProjectPerRegionForTPUAPI": "tpu-v5p-preemptible",
        "TPUV6EPreemptiblePerProjectPerZoneForTPUAPI": "tpu-v6e-preemptible",
    }
    for limit, metric in same.items():
        assert name_words(limit) == name_words(f"tpu.googleapis.com/{metric}")
    limits = {
        limit.id
        for accelerator in accelerator_types().values()
        for spot in (True, False)
        for limit in quota_limits(accelerator, spot)
        if limit.scope == "zone"
    }
    assert len({name_words(limit) for limit in limits}) == len(limits) > 10


# Compute Engine ---------------------------------------------------------------------------------

FAMILY = "TPUS-PER-TPU-FAMILY-per-project-region"
PREEMPTIBLE = "PREEMPTIBLE-TPU-V6E-per-project-region"
ZONE_OF_TPU_API = "TPUV6EPerProjectPerZoneForTPUAPI"


def compute_stack(folder: Path, **settings: str) -> Stack:
    fields = {"type": "v6e-16", "api": "compute", "zones": "[us-east5-a]", **settings}
    return load(folder, "tpu:\n" + "".join(f"  {key}: {value}\n" for key, value in fields.items()))


def compute_lines_of(stack: Stack, **limits: float) -> list[QuotaLine]:
    ids = {"family": FAMILY, "preemptible": PREEMPTIBLE}
    allowed = {(ids[key], "us-east5"): at for key, at in limits.items()}
    return list(tpu_lines(stack, plan(), [], allowed, new_nodes=len(stack.nodes)))


def test_compute_engine_counts_chips_in_its_own_pool(tmp_path: Path) -> None:
    stack = compute_stack(tmp_path)
    (line,) = compute_lines_of(stack, family=32)
    assert (line.limit, line.place, line.unit) == (FAMILY, "us-east5", "chips")
    assert (line.added, line.left) == (16, 16)
    (unknown,) = compute_lines_of(stack)
    assert (unknown.is_known, unknown.is_short) == (False, False)
    in_api = InventoryItem(TpuNode, "x", "", "us-east5-a", "READY", "v6e-16")
    (line,) = tpu_lines(
        stack, plan(), [in_api], {(FAMILY, "us-east5"): 32}, new_nodes=len(stack.nodes)
    )
    assert line.used == 0, "nodes of the Cloud TPU API use its pool"


def test_flex_start_takes_from_preemptible_pool_first(tmp_path: Path) -> None:
    stack = compute_stack(tmp_path, capacity="flex-start", queue="{run_for: 4h}")
    (line,) = compute_lines_of(stack, preemptible=16, family=16)
    assert (line.limit, line.is_short) == (PREEMPTIBLE, False)
    (line,) = compute_lines_of(stack, preemptible=8, family=16)
    assert (line.limit, line.is_short) == (FAMILY, False), "the standard pool is next"
    (line,) = compute_lines_of(stack, preemptible=8, family=8)
    assert (line.limit, line.is_short) == (PREEMPTIBLE, True)
    spot = compute_stack(tmp_path, capacity="spot")
    (line,) = compute_lines_of(spot, preemptible=8, family=16)
    assert (line.limit, line.is_short) == (PREEMPTIBLE, True), "spot has no other pool"


def test_reservations_of_compute_engine_used_quota_when_they_were_made(tmp_path: Path) -> None:
    stack = compute_stack(tmp_path, capacity="reserved", reservation="week")
    assert compute_lines_of(stack, family=0) == []
    in_reservation = InventoryItem(
        TpuInstance, "x", "", "us-east5-a", "READY", "v6e-4", capacity="reserved"
    )
    on_demand = InventoryItem(TpuInstance, "y", "", "us-east5-b", "READY", "v6e-4")
    items = [in_reservation, on_demand]
    allowed: dict[tuple[str, str], float | None] = {(FAMILY, "us-east5"): 32}
    stack = compute_stack(tmp_path)
    (line,) = tpu_lines(stack, plan(), items, allowed, new_nodes=len(stack.nodes))
    assert line.used == 4


@pytest.mark.parametrize(
    ("api", "in_tpu_api", "at_compute", "summary", "hint"),
    [
        ("compute", 512, 0, "Quota of the wrong pool", "tpu: {api: tpu}"),
        ("tpu", 0, 32, "Quota of the wrong pool", "tpu: {api: compute}"),
        ("auto", 0, 32, "Quota of the wrong pool", "then repeated at that API"),
        ("compute", 8, 0, "Not enough quota", "Request more quota"),
        ("compute", None, 0, "Not enough quota", "Request more quota"),
    ],
)
def test_room_in_pool_of_other_api_is_reported(
    tmp_path: Path, api: str, in_tpu_api: float | None, at_compute: float, summary: str, hint: str
) -> None:
    stack = compute_stack(tmp_path, api=api)
    allowed: dict[tuple[str, str], float | None] = {(FAMILY, "us-east5"): at_compute}
    if in_tpu_api is not None:
        allowed[ZONE_OF_TPU_API, "us-east5-a"] = in_tpu_api
    lines = tpu_lines(stack, plan(), [], allowed, new_nodes=len(stack.nodes))
    report = QuotaReport(tuple(lines), other_pool=other_pool(stack, plan(), [], allowed))
    (shortfall,) = report.shortfalls
    assert shortfall.summary == summary
    assert hint in shortfall.hint


def test_compute_engine_buckets_are_chosen_by_family_and_region() -> None:
    (limit,) = quota_limits(accelerator_types()["v6e-8"], False, "compute")
    buckets = [
        {"effectiveLimit": "1"},
        {"effectiveLimit": "2", "dimensions": {"tpu_family": "CT6E"}},
        {"effectiveLimit": "3", "dimensions": {"tpu_family": "CT3", "region": "us-east5"}},
        {"effectiveLimit": "32", "dimensions": {"tpu_family": "CT6E", "region": "us-east5"}},
    ]
    metric = {
        "metric": "compute.googleapis.com/tpus_per_tpu_family",
        "consumerQuotaLimits": [
            {"unit": "1/{project}/{region}/{tpu_family}", "quotaBuckets": buckets}
        ],
    }
    zones = ("us-east5-a", "us-east4-a")
    amounts = dict(allowed_amounts([metric], [limit], zones))
    assert amounts == {(FAMILY, "us-east5"): 32, (FAMILY, "us-east4"): 2}


def test_one_missing_slice_needs_quota_for_one(tmp_path: Path) -> None:
    """The slices that exist are in use, and are not requested again."""
    zone = "us-east5-a"
    stack = load(tmp_path, f"tpu: {{type: v6e-4, zones: [{zone}], api: compute, slices: 2}}")
    first, second = stack.nodes
    the_plan = Plan(
        (Change(f"instance/{first}", NOTHING, ""), Change(f"instance/{second}", CREATE, ""))
    )
    there = InventoryItem(TpuInstance, first, "bert", zone, "READY", "v6e-4")
    new_nodes = count_new_nodes(stack, the_plan)
    limits: dict[tuple[str, str], float | None] = {(FAMILY, "us-east5"): 8}
    (line,) = tpu_lines(stack, the_plan, [there], limits, new_nodes=new_nodes)
    assert (line.used, line.added, line.is_short) == (4, 4, False)
