"""The specification of a queued resource, and the messages while it waits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from google.cloud.tpu_v2.types import QueuedResource

from tests.support.stacks import bert_stack
from tpuctl.cloud.clients import Cloud
from tpuctl.cloud.endpoints import Endpoint
from tpuctl.model.stack.stack import Stack
from tpuctl.resources.network.network import Network
from tpuctl.resources.tpu.queued_resource import QueuedNodes
from tpuctl.resources.tpu.queued_resource_spec import request_body, waiting_text

NODE = {"accelerator_type": "v3-8", "scheduling_config": {"spot": True}, "labels": {"a": "b"}}
PLACE = "projects/my-project/locations/europe-west4-a"
REQUESTED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def stack(folder: Path, tpu: str) -> Stack:
    return bert_stack(folder, f"tpu: {{type: v3-8, zones: [europe-west4-a], {tpu}}}")


def request_of(folder: Path, tpu: str) -> dict[str, Any]:
    """The fields that differ from a minimal request."""
    body = request_body(stack(folder, tpu), dict(NODE))
    assert QueuedResource(body), "the official client accepts it"
    return {key: value for key, value in body.items() if key != "tpu"}


def test_request_body_replaces_node_scheduling(tmp_path: Path) -> None:
    body = request_body(stack(tmp_path, "queue: true, capacity: spot"), dict(NODE))
    plain = {"accelerator_type": "v3-8", "labels": {"a": "b"}}
    assert body == {
        "tpu": {"node_spec": [{"parent": PLACE, "node_id": "bert-tpu", "node": plain}]},
        "spot": {},
    }


def test_flex_start_plan_has_run_duration(tmp_path: Path) -> None:
    stack = bert_stack(
        tmp_path,
        "tpu: {type: v5litepod-4, capacity: flex-start, queue: {run_for: 4h, valid_until: 2d}}",
    )
    assert stack.zone in ("us-central1-a", "us-west4-a"), "a zone with flex-start"
    cloud = Cloud(Endpoint("local", "http://127.0.0.1:9", "token"), "my-project")
    change = QueuedNodes(Network(stack, cloud), str).diff(None)
    assert change.because == f"requesting v5litepod-4 in {stack.zone} for 4h, waiting up to 2d"


def test_several_nodes_use_name_prefix(tmp_path: Path) -> None:
    (spec,) = request_body(stack(tmp_path, "queue: {nodes: 3}"), dict(NODE))["tpu"]["node_spec"]
    assert "node_id" not in spec
    assert spec["multislice_params"] == {"node_count": 3, "node_id_prefix": "bert-tpu"}
    request = queued("PROVISIONING", valid_until_duration=timedelta(hours=2))
    assert waiting_text(request, REQUESTED + timedelta(hours=1)) == "PROVISIONING"


@pytest.mark.parametrize(
    ("tpu", "expected"),
    [
        ("queue: true", {}),
        ("queue: true, capacity: preemptible", {"spot": {}}),
        ("queue: {guaranteed: true}", {"guaranteed": {}}),
        ("queue: true, capacity: reserved", {"reservation_name": f"{PLACE}/reservations/-"}),
        (
            "queue: {reservation: ours, guaranteed: true}, capacity: reserved",
            {"reservation_name": f"{PLACE}/reservations/ours", "guaranteed": {}},
        ),
        (
            "queue: {valid_until: 90m}",
            {"queueing_policy": {"valid_until_duration": timedelta(seconds=5400)}},
        ),
        (
            "queue: {valid_until: '2026-01-31T18:00:00+01:00'}",
            {"queueing_policy": {"valid_until_time": datetime(2026, 1, 31, 17, tzinfo=UTC)}},
        ),
    ],
)
def test_capacity_and_deadline(tmp_path: Path, tpu: str, expected: dict[str, Any]) -> None:
    assert request_of(tmp_path, tpu) == expected


def queued(state: str, **policy: Any) -> QueuedResource:
    return QueuedResource(state={"state": state}, create_time=REQUESTED, queueing_policy=policy)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (59, "ACCEPTED"),
        (-5, "ACCEPTED"),  # this computer's clock is behind
        (61, "ACCEPTED for 1 min"),
        (599, "ACCEPTED for 9 min"),
        (1799, "ACCEPTED for 20 min"),
        (2 * 3600 + 1799, "ACCEPTED for 2 h"),
        (2 * 3600 + 1800, "ACCEPTED for 2 h 30 min"),
        (2 * 86400 + 7300, "ACCEPTED for 2 d 2 h"),
    ],
)
def test_waiting_time_is_rounded_in_growing_steps(seconds: int, expected: str) -> None:
    assert waiting_text(queued("ACCEPTED"), REQUESTED + timedelta(seconds=seconds)) == expected


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({"valid_until_duration": timedelta(hours=2)}, "2026-01-02 05:04"),
        ({"valid_until_time": REQUESTED + timedelta(days=1)}, "2026-01-03 03:04"),
    ],
)
def test_waiting_text_has_deadline(policy: dict[str, Any], expected: str) -> None:
    text = waiting_text(queued("WAITING_FOR_RESOURCES", **policy), REQUESTED)
    assert text == f"WAITING_FOR_RESOURCES, until {expected} UTC"
