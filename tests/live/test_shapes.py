"""Records of the official clients' responses: fields and constants, no private values."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from google.api_core.iam import Policy
from google.cloud.compute_v1.types import Firewall
from google.cloud.tpu_v2.types import Node, OperationMetadata
from google.longrunning.operations_pb2 import Operation

from tests.live.harness.recorder import Recorder
from tests.live.harness.shapes import as_json, constants, fields, method_name, redacted
from tpuctl.errors import NotFound

NODE = Node(
    name="projects/my-project/locations/europe-west4-a/nodes/mine",
    state=Node.State.READY,
    labels={"tpuctl-stack": "mine", "customer": "ACME"},
    network_endpoints=[{"ip_address": "10.1.2.3"}],
)


def test_message_fields_have_json_names() -> None:
    fields_of_node = as_json(NODE)
    assert fields(fields_of_node) == {
        "name",
        "state",
        "labels.tpuctl-stack",
        "labels.*",
        "networkEndpoints[].ipAddress",
    }
    assert dict(constants(fields_of_node)) == {"state": "READY"}


def test_operation_includes_metadata_fields() -> None:
    metadata = OperationMetadata(verb="create", target="nodes/mine", api_version="v2")
    operation = Operation(name="projects/p/locations/l/operations/1", done=True)
    operation.metadata.Pack(OperationMetadata.pb(metadata))
    fields_of_operation = as_json(operation)
    assert fields(fields_of_operation) >= {"name", "done", "metadata.verb", "metadata.apiVersion"}
    assert ("done", "true") in constants(fields_of_operation)


def test_policies_and_other_responses_as_json() -> None:
    policy = Policy(version=3)
    policy.bindings = [{"role": "roles/viewer", "members": {"user:ann@example.com"}}]
    assert fields(as_json(policy)) >= {"bindings[].role", "bindings[].members[]"}
    rule = Firewall(name="mine", allowed=[{"I_p_protocol": "tcp"}], direction="INGRESS")
    assert ("direction", "INGRESS") in constants(as_json(rule))
    assert as_json(["no", "message"]) is None
    assert as_json(None) is None


def test_method_name_includes_api_version() -> None:
    from google.cloud.storage import Bucket
    from google.cloud.tpu_v1 import TpuClient as ClientV1
    from google.cloud.tpu_v2 import TpuClient as ClientV2

    assert method_name(ClientV1.__new__(ClientV1).get_node) == "tpu_v1.get_node"
    assert method_name(ClientV2.__new__(ClientV2).get_node) == "tpu_v2.get_node"
    assert method_name(Bucket(None, "b").get_iam_policy) == "storage.bucket.get_iam_policy"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nodes/live-1a2b-v1-tpu and live-1a2b-tpu", "nodes/STACK-V1-tpu and STACK-tpu"),
        ("in my-project (123456789012)", "in PROJECT (ID)"),
        ("user:ann@example.com", "user:ACCOUNT"),
        ("from 203.0.113.7/32 at 2026-11-21T00:15:00.123Z", "from ADDRESS at TIME"),
        ("http://127.0.0.1:4321/compute/v1", "https://www.googleapis.com/compute/v1"),
        ("Stockout. [EID: 0x1a2b3c4d5e6f7a8b]", "Stockout. [EID]"),
        ("operation-1732147200000-6274f0a1-b2c3", "operation-ID"),
        ("TensorFlow 2.18.0 on v2-8, port 8470", "TensorFlow 2.18.0 on v2-8, port 8470"),
    ],
)
def test_names_and_ids_are_redacted(text: str, expected: str) -> None:
    names = {"live-1a2b": "STACK", "live-1a2b-v1": "STACK-V1", "my-project": "PROJECT"}
    assert redacted(text, names) == expected


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(tmp_path / "record.json", {"my-project": "PROJECT"}, {"cloud": "local"})


def test_failed_step_is_recorded_before_error_is_raised(recorder: Recorder) -> None:
    with pytest.raises(NotFound), recorder.step("up"):
        raise NotFound("No network", "my-project has none")
    (step,) = recorder.record["steps"]
    assert step["outcome"] == "NotFound: No network: PROJECT has none"
    assert "PROJECT has none" in recorder.path.read_text("utf-8")


def test_missing_refusal_fails(recorder: Recorder) -> None:
    with (
        pytest.raises(AssertionError, match="was not refused"),
        recorder.expect_refusal("it", NotFound),
    ):
        pass
    with recorder.expect_refusal("it", NotFound):
        raise NotFound("No node", "not found")
    assert recorder.record["refusals"]["it"]["text"] == "No node: not found"


async def test_states_are_recorded_in_observed_order(recorder: Recorder) -> None:
    states: list[Any] = [None, "CREATING", "CREATING", "READY"]
    is_finished = asyncio.Event()

    async def read_state() -> str | None:
        if len(states) == 1:
            is_finished.set()
            return str(states[0])
        return states.pop(0)  # type: ignore[no-any-return]

    with recorder.step("up"):
        async with recorder.watch_states("the node", read_state, 0.001):
            await asyncio.wait_for(is_finished.wait(), 20)
    recorded = recorder.record["states"]["up: the node"]["observed"]
    assert [state["state"] for state in recorded] == ["ABSENT", "CREATING", "READY"]
