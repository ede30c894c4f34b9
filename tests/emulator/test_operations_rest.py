"""Long-running operations as plain JSON, including fields that are false."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.locations import PARENT
from tests.support.polling import until

NODES = {
    "v1": {"acceleratorType": "v3-8", "tensorflowVersion": "2.12.0"},
    "v1alpha1": {"acceleratorType": "v3-8", "tensorflowVersion": "2.12.0"},
    "v2": {"acceleratorType": "v3-8", "runtimeVersion": "tpu-ubuntu2204-base"},
    "v2alpha1": {"acceleratorType": "v3-8", "runtimeVersion": "tpu-ubuntu2204-base"},
}


def call(cloud: Any, verb: str, path: str, body: Any = None) -> Any:
    answer = cloud.request(verb, path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def ended(cloud: Any, path: str) -> Any:
    """The finished operation."""

    def done() -> Any:
        operation = call(cloud, "GET", path)
        return operation if operation["done"] else None

    return until(done, f"the end of {path}")


@pytest.mark.parametrize("version", NODES)
def test_pending_operation_has_done_false(cloud: Any, version: str) -> None:
    """SkyPilot reads `operation["done"]` from each response, and deletes the node on a KeyError."""
    cloud.host.gate.clear()
    path = f"/{version}/{PARENT}/nodes"
    created = call(cloud, "POST", f"{path}?nodeId=n", NODES[version])
    pending = call(cloud, "GET", f"/{version}/{created['name']}")
    listed = call(cloud, "GET", f"/{version}/{PARENT}/operations")
    for operation in (created, pending, *listed["operations"]):
        assert operation["done"] is False
        assert operation["metadata"]["cancelRequested"] is False
        assert list(operation) == ["name", "metadata", "done"]
    cloud.in_loop(cloud.host.gate.set)
    pending = ended(cloud, f"/{version}/{created['name']}")
    assert pending["metadata"]["cancelRequested"] is False
    assert list(pending) == ["name", "metadata", "done", "response"]
    # Responses have their own rules: nodes omit false fields.
    assert "multisliceNode" not in pending["response"]


def test_failed_operation_keeps_its_error(cloud: Any) -> None:
    cloud.host.broken = "no image for this runtime"
    created = call(cloud, "POST", f"/v2/{PARENT}/nodes?nodeId=n", NODES["v2"])
    finished = ended(cloud, f"/v2/{created['name']}")
    assert "no image for this runtime" in finished["error"]["message"]
    assert "response" not in finished


def test_empty_operation_list_is_empty_object(cloud: Any) -> None:
    assert call(cloud, "GET", f"/v2/{PARENT}/operations") == {}


@pytest.mark.parametrize("version", ["v1", "v3"])
async def test_pending_resource_manager_operation_omits_done(make_cloud: Any, version: str) -> None:
    """Google answers a project's creation with {"name": "operations/cp.N"}."""
    cloud = await make_cloud(pace="real")
    created = await asyncio.to_thread(
        call, cloud, "POST", f"/{version}/projects", {"projectId": "a-new-project"}
    )
    assert not {"done", "cancelRequested"} & {*created, *created.get("metadata", {})}
