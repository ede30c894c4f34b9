"""The controller's machine type: the default of `auto`, and types rejected before any call."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.stacks import bert_stack
from tpuctl.errors import Diagnostic, InvalidStack
from tpuctl.model.stack.stack import Stack


def problem(folder: Path, text: str) -> Diagnostic:
    with pytest.raises(InvalidStack) as caught:
        bert_stack(folder, text)
    (diagnostic,) = caught.value.diagnostics
    return diagnostic


def machine(stack: Stack) -> str:
    assert stack.controller is not None
    return stack.controller.machine_type


def test_default_machine_type_is_offered_in_region(tmp_path: Path) -> None:
    """N1 is not offered everywhere; a failover into such a region uses another type there."""
    stack = bert_stack(
        tmp_path,
        "tpu: {type: v5p-8, zones: [europe-west4-b, us-east5-a]}\n"
        "controller: {disk_gb: 60}\nbucket: {allow_egress: true}",
    )
    assert machine(stack) == "n1-standard-1"
    assert machine(stack.in_zone("us-east5-a")) == "e2-standard-2"
    assert stack.controller is not None and stack.controller.disk_gb == 60
    assert machine(bert_stack(tmp_path, "tpu: {type: v3-8, kind: node}")) == "n1-standard-1"


def test_machine_type_applies_to_every_zone(tmp_path: Path) -> None:
    stack = bert_stack(
        tmp_path,
        "tpu: {type: v5p-8, zones: [europe-west4-b, us-east5-a]}\n"
        "controller: {machine_type: e2-medium}\nbucket: {allow_egress: true}",
    )
    assert machine(stack) == machine(stack.in_zone("us-east5-a")) == "e2-medium"
    diagnostic = problem(
        tmp_path,
        "tpu: {type: v5p-8, zones: [us-east5-a]}\ncontroller: {machine_type: n1-standard-2}",
    )
    assert diagnostic.summary == "Machine type not offered in region"
    assert "us-east5" in diagnostic.detail
    assert "e2-standard-2" in diagnostic.hint


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("n1-standart-1", "n1-standard-1"), ("n9-standard-1", "n1-standard-1"), ("e2-tiny", "")],
)
def test_invalid_machine_types(tmp_path: Path, name: str, nearest: str) -> None:
    diagnostic = problem(tmp_path, f"tpu: {{type: v3-8}}\ncontroller:\n  machine_type: {name}")
    assert (diagnostic.summary, diagnostic.where.rpartition(":")[2]) == (
        "Unknown machine type",
        "5",
    )
    assert name in diagnostic.detail
    assert nearest in diagnostic.hint


@pytest.mark.parametrize(
    "name", ["c3-standard-4", "n1-standard-96", "n2-custom-4-8192", "custom-2-4096", "g1-small"]
)
def test_machine_types_without_price_are_accepted(tmp_path: Path, name: str) -> None:
    text = f"tpu: {{type: v3-8}}\ncontroller: {{machine_type: {name}}}"
    assert machine(bert_stack(tmp_path, text)) == name


def test_cross_region_traffic_is_rejected_with_price(tmp_path: Path) -> None:
    """From the published table: 0.05 dollars a GB between North America and Europe."""
    diagnostic = problem(tmp_path, "tpu: {type: v5litepod-8, zones: [us-west4-a, europe-west4-b]}")
    assert diagnostic.summary == "Bucket outside the TPU's region"
    assert "$0.05 per GB (prices of mid-2026)" in diagnostic.detail


def test_flex_start_node_has_flex_start_price(tmp_path: Path) -> None:
    """1.35 dollars per chip in europe-west4, according to the catalog's source."""
    stack = bert_stack(
        tmp_path,
        "tpu: {type: v6e-8, capacity: flex-start, queue: {run_for: 4h}, zones: [europe-west4-a]}",
    )
    assert stack.price is not None
    assert (stack.price.capacity, stack.price.read) == ("flex-start", "2026-08-11")
    assert stack.price.per_hour == pytest.approx(8 * 1.35)
