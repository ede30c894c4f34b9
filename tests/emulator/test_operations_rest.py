"""Long-running operations as plain JSON: what Cloud TPU's say while nothing is true yet."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.places import PARENT
from tests.support.waiting import async_until

NODES = {
    "v1": {"acceleratorType": "v3-8", "tensorflowVersion": "2.12.0"},
    "v1alpha1": {"acceleratorType": "v3-8", "tensorflowVersion": "2.12.0"},
    "v2": {"acceleratorType": "v3-8", "runtimeVersion": "tpu-ubuntu2204-base"},
    "v2alpha1": {"acceleratorType": "v3-8", "runtimeVersion": "tpu-ubuntu2204-base"},
}


async def call(cloud: Any, verb: str, path: str, body: Any = None) -> Any:
    answer = await asyncio.to_thread(cloud.request, verb, path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def ended(cloud: Any, path: str) -> Any:
    """The operation, once it has ended."""

    async def done() -> Any:
        shown = await call(cloud, "GET", path)
        return shown if shown["done"] else None

    return await async_until(done, f"the end of {path}")


@pytest.mark.parametrize("version", NODES)
async def test_pending_operation_says_that_it_is_not_done(cloud: Any, version: str) -> None:
    """SkyPilot reads `operation["done"]` of each answer, and deletes the node on a KeyError."""
    cloud.host.gate.clear()
    path = f"/{version}/{PARENT}/nodes"
    created = await call(cloud, "POST", f"{path}?nodeId=n", NODES[version])
    shown = await call(cloud, "GET", f"/{version}/{created['name']}")
    listed = await call(cloud, "GET", f"/{version}/{PARENT}/operations")
    for operation in (created, shown, *listed["operations"]):
        assert operation["done"] is False
        assert operation["metadata"]["cancelRequested"] is False
        assert list(operation) == ["name", "metadata", "done"]
    cloud.host.gate.set()
    shown = await ended(cloud, f"/{version}/{created['name']}")
    assert shown["metadata"]["cancelRequested"] is False
    assert list(shown) == ["name", "metadata", "done", "response"]
    # What an operation answers with has its own rules: nodes leave out what is false.
    assert "multisliceNode" not in shown["response"]


async def test_failed_operation_keeps_its_error(cloud: Any) -> None:
    cloud.host.broken = "no image for this runtime"
    created = await call(cloud, "POST", f"/v2/{PARENT}/nodes?nodeId=n", NODES["v2"])
    shown = await ended(cloud, f"/v2/{created['name']}")
    assert "no image for this runtime" in shown["error"]["message"]
    assert "response" not in shown


async def test_no_operations_are_an_empty_object(cloud: Any) -> None:
    assert await call(cloud, "GET", f"/v2/{PARENT}/operations") == {}


@pytest.mark.parametrize("version", ["v1", "v3"])
async def test_pending_operation_of_resource_manager_says_nothing(
    make_cloud: Any, version: str
) -> None:
    """Google answers a project's creation with {"name": "operations/cp.N"}."""
    cloud = await make_cloud(pace="real")
    created = await call(cloud, "POST", f"/{version}/projects", {"projectId": "a-new-project"})
    assert not {"done", "cancelRequested"} & {*created, *created.get("metadata", {})}
