"""The cost of everything is shown before it is created, for each zone that `up` may use."""

from __future__ import annotations

import re

import pytest

from tests.support.projects import Bench, Project
from tpuctl.model.cost.stack_cost import cost_of

# Published, in US dollars an hour in europe-west4: v3-8 8.80, v3-32 on spot 0.66 a chip,
# n1-standard-1 0.052292, an address 0.005, on spot 0.0025; per GB per month of pd-standard 0.044,
# of pd-balanced 0.11, of storage 0.02. In us-central1: v3-8 8.00, n1-standard-1 0.04749975.
MONTH = 730


def lines(bench: Bench) -> dict[str, float | None]:
    return {line.item: line.per_hour for line in cost_of(bench.stack.stack).lines}


def test_cost_of_node_address_and_bucket(project: Project) -> None:
    assert lines(project.stack()) == {
        "node v3-8 in europe-west4-a": pytest.approx(8.8),
        "external address": pytest.approx(0.005),
        "bucket in europe-west4": 0,
    }


def test_cost_covers_created_resources_only(project: Project) -> None:
    bench = project.stack(
        "kind: node, data_disks: [{size_gb: 100}, {size_gb: 100}, {size_gb: 10, "
        "type: pd-standard}, {name: mine}]",
        "controller: {disk_gb: 60}",
    )
    assert lines(bench) == {
        "node v3-8 in europe-west4-a": pytest.approx(8.8),
        "controller n1-standard-1 in europe-west4-a": pytest.approx(0.052292),
        "controller's disk, 60 GB pd-standard": pytest.approx(60 * 0.044 / MONTH),
        "2 data disks, 100 GB pd-balanced each": pytest.approx(200 * 0.11 / MONTH),
        "data disk, 10 GB pd-standard": pytest.approx(10 * 0.044 / MONTH),
        "external address": pytest.approx(0.005),  # the controller's: a node has none
        "bucket in europe-west4": 0,
    }


def test_cost_of_several_spot_nodes(project: Project) -> None:
    bench = project.stack(
        "capacity: spot, queue: {nodes: 2}",
        "controller: {}\nbucket: {location: EU, allow_egress: true}",
        type_name="v3-32",
    )
    costs = lines(bench)
    assert costs["2 nodes v3-32 in europe-west4-a"] == pytest.approx(2 * 16 * 0.66)
    assert costs["8 external addresses"] == pytest.approx(8 * 0.0025)
    assert costs["external address"] == pytest.approx(0.005)  # a controller is never spot
    assert "bucket in eu" in costs


def test_no_address_cost_without_external_addresses(project: Project) -> None:
    assert "external address" not in lines(project.stack(extra="network: {ssh: internal}"))


async def test_plan_json_has_costs(project: Project) -> None:
    bench = project.stack(
        zones="europe-west4-a, us-central1-b", extra="bucket: {allow_egress: true}"
    )
    answer = bench.answer("plan")
    assert (answer["status"], answer["diagnostics"]) == ("ok", [])
    data = answer["data"]
    assert (data["price_per_hour"], data["price_as_of"]) == (pytest.approx(8.8), "mid-2026")
    assert data["cost"]["per_hour"] == pytest.approx(8.805)
    assert data["cost"]["complete"] is True
    (fallback,) = data["fallback_costs"].items()
    assert (fallback[0], fallback[1]["per_hour"]) == ("us-central1-b", pytest.approx(8.005))
    assert data["zone"] == "europe-west4-a"


async def test_plan_prints_costs(project: Project) -> None:
    bench = project.stack(
        "kind: node",
        zones="europe-west4-a, us-central1-b, us-central1-a",
        extra="bucket: {allow_egress: true}",
    )
    code, out, _ = bench.type("plan")
    assert code == 0
    rows = [" ".join(line.split()) for line in out.splitlines()]
    assert "node v3-8 in europe-west4-a $8.80 on demand" in rows
    assert "bucket in europe-west4 $0.00 $0.02 per GB per month" in rows
    assert "total $8.86 prices of mid-2026" in rows
    assert "or in us-central1-b $8.06 and $0.05 per GB from the bucket" in rows, (
        "the cost in the other zone is shown"
    )


async def test_up_prints_costs_before_confirmation(project: Project) -> None:
    bench = project.stack()
    code, out, stderr = bench.type("up")
    assert code == 2, "cannot prompt"
    assert "total" in out, "the plan is shown first"
    question = "The local cloud is free. On Google this stack costs $8.81/h, prices of mid-2026."
    assert f"{question} Continue?" in " ".join(stderr.split())
    assert "charged on Google" in out
    assert (await bench.stack.status()).inventory == ()


def test_plan_fits_narrow_terminal(project: Project) -> None:
    bench = project.stack(
        "capacity: spot, data_disks: [{size_gb: 1000}]",
        "controller: {}\nbucket: {allow_egress: true}",
        type_name="v5litepod-8",
        zones="us-west4-a, europe-west4-b",
    )
    out = bench.in_terminal("plan", columns=80)
    widths = [len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in out.splitlines()]
    assert max(widths) <= 80
    assert "TPUV5sPreemptibleLitepodServing" in out, "names are not broken across lines"
