"""Preemption and maintenance of nodes, with the official client."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import tpu_v2

from tests.support.locations import PARENT
from tests.support.polling import async_until

NAME = f"{PARENT}/nodes/n"
State = tpu_v2.Node.State


def node(**fields: Any) -> tpu_v2.Node:
    fields = {"accelerator_type": "v3-8", **fields}
    return tpu_v2.Node(runtime_version="tpu-ubuntu2204-base", **fields)


def create(client: Any, requested: tpu_v2.Node) -> Any:
    operation = client.create_node(parent=PARENT, node_id="n", node=requested, timeout=60)
    return operation.result(timeout=60)


def delete(client: Any) -> Any:
    return client.delete_node(name=NAME, timeout=60).result(timeout=60)


async def get(client: Any) -> Any:
    return await asyncio.to_thread(client.get_node, name=NAME, timeout=60)


async def test_preemption_sends_notice_and_stops_machines(make_cloud: Any) -> None:
    cloud = await make_cloud()
    cloud.enable("tpu", "compute")
    client = cloud.tpu()
    requested = node(accelerator_type="v3-32", scheduling_config={"spot": True})
    await asyncio.to_thread(create, client, requested)
    cloud.host.gate.clear()
    await cloud.server.registry.service("tpu").preempt(NAME)
    workers = [f"{NAME}/workers/{index}" for index in range(4)]
    await async_until(lambda: len(cloud.host.events) >= 4, "four notices")
    assert sorted(cloud.host.events) == [(each, "preempted", "TRUE") for each in workers]
    assert (await get(client)).state is State.READY  # for as long as the notice lasts
    assert cloud.host.running == set(workers)
    cloud.host.gate.set()

    async def is_not_ready() -> bool:
        return (await get(client)).state is not State.READY

    await async_until(is_not_ready, "the end of the notice")
    assert (await get(client)).state is State.PREEMPTED
    assert cloud.host.running == set()
    with pytest.raises(exceptions.BadRequest) as caught:
        await asyncio.to_thread(client.start_node, request={"name": NAME}, timeout=60)
    assert "not supported while in state PREEMPTED" in caught.value.message
    await asyncio.to_thread(delete, client)


async def test_node_deleted_during_notice_stays_deleted(make_cloud: Any) -> None:
    cloud = await make_cloud()
    cloud.enable("tpu", "compute")
    client = cloud.tpu()
    await asyncio.to_thread(create, client, node())
    cloud.host.gate.clear()
    await cloud.server.registry.service("tpu").preempt(NAME)
    deletion = asyncio.create_task(asyncio.to_thread(delete, client))
    await async_until(lambda: "discard" in cloud.host.called, "the deletion")
    cloud.host.gate.set()
    await deletion
    async with asyncio.timeout(20):
        while list(cloud.server.registry.operations.pending("tpu.preempt")):
            await asyncio.sleep(0.02)
    assert not list(await asyncio.to_thread(client.list_nodes, parent=PARENT, timeout=60))


async def test_maintenance_event_starts_and_ends(make_cloud: Any) -> None:
    cloud = await make_cloud()
    cloud.enable("tpu", "compute")
    client = cloud.tpu()
    await asyncio.to_thread(create, client, node())
    cloud.server.registry.pace.name = "quick"
    await cloud.server.registry.service("tpu").maintain(NAME)
    node_found = await get(client)
    assert node_found.health is tpu_v2.Node.Health.UNHEALTHY_MAINTENANCE
    assert node_found.state is State.READY
    async with asyncio.timeout(20):
        while (await get(client)).health is tpu_v2.Node.Health.UNHEALTHY_MAINTENANCE:
            await asyncio.sleep(0.05)
    assert (await get(client)).health is tpu_v2.Node.Health.HEALTHY
    worker = f"{NAME}/workers/0"
    assert cloud.host.events == [
        (worker, "maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE"),
        (worker, "maintenance-event", "NONE"),
    ]
    assert cloud.host.running == {worker}
