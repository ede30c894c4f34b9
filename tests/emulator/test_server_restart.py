"""What a restart keeps and resumes, with the official client."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from google.cloud import tpu_v2

from tests.support.callers import Member, grant, make_role
from tests.support.locations import PARENT
from tests.support.polling import async_until

State = tpu_v2.Node.State


def node() -> tpu_v2.Node:
    return tpu_v2.Node(accelerator_type="v3-8", runtime_version="tpu-ubuntu2204-base")


def create(client: Any, node_id: str) -> Any:
    operation = client.create_node(parent=PARENT, node_id=node_id, node=node(), timeout=60)
    return operation.result(timeout=60)


async def test_restart_keeps_nodes_and_boots_their_machines(make_cloud: Any) -> None:
    cloud = await make_cloud()
    cloud.enable("tpu", "compute")
    node = await asyncio.to_thread(create, cloud.tpu(), "n")
    await cloud.server.close()
    again = await make_cloud()
    restarted = await asyncio.to_thread(again.tpu().get_node, name=node.name, timeout=60)
    node.health = restarted.health  # which the response of the creation lacks
    assert restarted == node
    await async_until(again.host.count_running, "a machine running")


async def test_restart_finishes_pending_operations(make_cloud: Any) -> None:
    cloud = await make_cloud()
    cloud.enable("tpu", "compute")
    cloud.host.gate.clear()

    def begin() -> Any:
        return cloud.tpu().create_node(parent=PARENT, node_id="n", node=node(), timeout=60)

    operation = await asyncio.to_thread(begin)
    await cloud.server.close()
    again = await make_cloud()

    def finish() -> Any:
        client = again.tpu()
        request = {"name": operation.operation.name}
        for _ in range(500):
            if client.get_operation(request=request, timeout=60).done:
                return client.get_node(name=f"{PARENT}/nodes/n", timeout=60)
        return None

    finished = await asyncio.to_thread(finish)
    assert finished is not None
    assert finished.state is State.READY
    assert again.host.count_running() == 1


async def test_clock_that_is_set_back_prolongs_no_delay(
    make_cloud: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two hours; seconds were left of each delay."""
    real_time, offset = time.time, 7200.0
    monkeypatch.setattr(time, "time", lambda: real_time() + offset)
    cloud = await make_cloud(pace="real")
    cloud.enable("tpu", "compute", "iam")
    account = "ann-account@local-project.iam.gserviceaccount.com"

    def prepare() -> Any:
        owner = Member.owner(cloud)
        body = {"accountId": "ann-account"}
        path = "/v1/projects/local-project/serviceAccounts"
        assert owner.send("POST", path, json=body).ok
        grant(cloud, "projects/local-project", "roles/viewer", "user:bob@example.com")
        owner.send("PATCH", "/_local/settings", json={"propagation": 600})
        grant(cloud, "projects/local-project", "roles/storage.admin", "user:bob@example.com")
        role = make_role(cloud, "some", ["storage.buckets.list"])
        operation = cloud.tpu().create_node(parent=PARENT, node_id="n", node=node(), timeout=60)
        return role, operation.operation.name

    role, operation = await asyncio.to_thread(prepare)
    await cloud.server.close()
    offset = 0.0
    again = await make_cloud(pace="real")

    def check() -> None:
        bob = Member(again, "bob")
        path = "/storage/v1/b?project=local-project"
        assert bob.send("POST", path, json={"name": "of-bob"}).status_code == 200, "propagated"
        for member in ("user:eve@example.com", f"serviceAccount:{account}"):
            grant(again, "projects/local-project", role, member)

    await asyncio.to_thread(check)

    async def is_done() -> bool:
        get = again.tpu().get_operation
        done = await asyncio.to_thread(get, request={"name": operation}, timeout=60)
        return bool(done.done)

    await async_until(is_done, "the end of the operation", 10)
