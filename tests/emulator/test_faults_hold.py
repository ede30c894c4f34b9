"""Requests held at a call, and how they continue or end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import tpu_v2

from tests.support.locations import PARENT
from tpuctl.errors import NotFound, TimedOut, Usage
from tpuctl.local_cloud import remote_control

NODE = tpu_v2.Node(accelerator_type="v3-8", runtime_version="tpu-ubuntu2204-base")
# A client in a separate process, which can be killed: URL, TOKEN, METHOD.
PROGRAM = """
import sys, requests
url, token, kind = sys.argv[1:]
session = requests.Session()
session.trust_env = False
session.headers["Authorization"] = "Bearer " + token
if kind == "grpc":
    import grpc
    from google.cloud import tpu_v2
    channel = grpc.insecure_channel(url.removeprefix("http://"), [("grpc.enable_http_proxy", 0)])
    call = channel.unary_unary(
        "/google.cloud.tpu.v2.Tpu/CreateNode",
        request_serializer=tpu_v2.CreateNodeRequest.serialize,
    )
    node = tpu_v2.Node(accelerator_type="v3-8", runtime_version="tpu-ubuntu2204-base")
    parent = "projects/local-project/locations/europe-west4-a"
    request = tpu_v2.CreateNodeRequest(parent=parent, node_id="one", node=node)
    call(request, metadata=[("authorization", "Bearer " + token)], timeout=60)
else:
    body = {"acceleratorType": "v3-8", "runtimeVersion": "tpu-ubuntu2204-base"}
    path = "/v2/projects/local-project/locations/europe-west4-a/nodes?nodeId=one"
    session.post(url + path, json=body, timeout=60)
"""


def create(client: Any) -> Any:
    return client.create_node(parent=PARENT, node_id="one", node=NODE, timeout=60)


def node_names(cloud: Any) -> list[str]:
    return [name for name, _ in cloud.in_loop(cloud.server.store.items, "tpu.node")]


@pytest.mark.parametrize("transport", ["grpc", "rest"])
@pytest.mark.parametrize("hold_response", [False, True])
@pytest.mark.parametrize("how", ["released", "removed"])
async def test_held_request_continues_after_release(
    cloud: Any, transport: str, hold_response: bool, how: str
) -> None:
    handle = cloud.local_cloud
    fault = await asyncio.to_thread(
        remote_control.add_fault, handle, "hold", method="CreateNode", hold_response=hold_response
    )
    call = asyncio.create_task(asyncio.to_thread(create, cloud.tpu(transport)))
    waiting = await asyncio.to_thread(remote_control.wait_held, handle, fault["id"], 10)
    assert [call["method"] for call in waiting] == ["google.cloud.tpu.v2.Tpu/CreateNode"]
    assert bool(node_names(cloud)) == hold_response
    assert not call.done()
    if how == "released":
        assert await asyncio.to_thread(remote_control.release, handle, fault["id"]) == 1
        assert (await asyncio.to_thread(remote_control.fault, handle, fault["id"]))["applied"] == 1
    else:
        await asyncio.to_thread(remote_control.remove_fault, handle, fault["id"])
    operation = await asyncio.wait_for(call, 20)
    assert operation.operation.name.startswith(PARENT)
    assert node_names(cloud) == [f"{PARENT}/nodes/one"]


async def test_held_request_can_be_cut_off(cloud: Any) -> None:
    handle = cloud.local_cloud
    fault = await asyncio.to_thread(remote_control.add_fault, handle, "hold", method="CreateNode")
    call = asyncio.create_task(asyncio.to_thread(create, cloud.tpu()))
    await asyncio.to_thread(remote_control.wait_held, handle, fault["id"], 10)
    assert await asyncio.to_thread(remote_control.release, handle, fault["id"], drop=True) == 1
    with pytest.raises(exceptions.ServiceUnavailable):
        await asyncio.wait_for(call, 20)
    assert node_names(cloud) == []


@pytest.mark.parametrize("kind", ["grpc", "rest"])
@pytest.mark.parametrize("hold_response", [False, True])
async def test_disconnected_client_ends_held_request(
    cloud: Any, kind: str, hold_response: bool
) -> None:
    handle = cloud.local_cloud
    fault = await asyncio.to_thread(
        remote_control.add_fault, handle, "hold", method="mutating", hold_response=hold_response
    )
    with subprocess.Popen([sys.executable, "-c", PROGRAM, cloud.url, cloud.token, kind]) as client:
        await asyncio.to_thread(remote_control.wait_held, handle, fault["id"], 30)
        client.kill()
    async with asyncio.timeout(10):  # the disconnected client is detected
        while (await asyncio.to_thread(remote_control.fault, handle, fault["id"]))["held_calls"]:
            await asyncio.sleep(0.01)
    await asyncio.to_thread(remote_control.remove_all_faults, handle)
    assert bool(node_names(cloud)) == hold_response
    (call,) = await asyncio.to_thread(remote_control.calls, handle)
    assert call["status"] in ("DISCONNECTED", "CANCELLED")


async def test_server_stops_despite_held_request(make_cloud: Any) -> None:
    cloud = await make_cloud()
    cloud.enable("tpu", "compute")
    handle = cloud.local_cloud
    fault = await asyncio.to_thread(remote_control.add_fault, handle, "hold", method="CreateNode")
    call = asyncio.create_task(asyncio.to_thread(create, cloud.tpu()))
    await asyncio.to_thread(remote_control.wait_held, handle, fault["id"], 10)
    await asyncio.wait_for(cloud.server.close(), 10)
    with pytest.raises(exceptions.ServiceUnavailable):
        await asyncio.wait_for(call, 20)
    again = await make_cloud()
    assert node_names(again) == []


def test_wait_held_times_out_without_request(cloud: Any) -> None:
    handle = cloud.local_cloud
    fault = remote_control.add_fault(handle, "hold")
    with pytest.raises(TimedOut):
        remote_control.wait_held(handle, fault["id"], 0)
    with pytest.raises(NotFound, match="hold-7"):
        remote_control.fault(handle, "hold-7")
    with pytest.raises(Usage, match="drop"):
        remote_control.release(handle, fault["id"], drop="no")  # type: ignore[arg-type]
