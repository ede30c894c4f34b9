"""Nodes with pending operations, preemption and maintenance, with the official client."""

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


def begin(client: Any, **fields: Any) -> Any:
    fields = {"accelerator_type": "v3-8", **fields}
    node = tpu_v2.Node(runtime_version="tpu-ubuntu2204-base", **fields)
    return client.create_node(parent=PARENT, node_id="n", node=node, timeout=60)


def create(client: Any, **fields: Any) -> Any:
    return begin(client, **fields).result(timeout=60)


def delete(client: Any) -> Any:
    return client.delete_node(name=NAME, timeout=60).result(timeout=60)


def is_done(client: Any, operation: Any) -> bool:
    request = {"name": operation.operation.name}
    status = client.get_operation(request=request, timeout=60)
    return bool(status.done)


async def get(client: Any) -> Any:
    return await asyncio.to_thread(client.get_node, name=NAME, timeout=60)


async def has_called(cloud: Any, method: str) -> None:
    await async_until(lambda: method in cloud.host.called, method)


async def test_operations_last_as_long_as_the_pace(make_cloud: Any) -> None:
    cloud = await make_cloud(pace="real")  # takes minutes after the machines have booted
    cloud.enable("tpu", "compute")
    client = cloud.tpu()
    creation = await asyncio.to_thread(begin, client)
    await async_until(cloud.host.count_running, "a machine running")
    assert (await get(client)).state is State.CREATING
    assert not await asyncio.to_thread(is_done, client, creation)


async def test_creation_fails_after_machines_are_discarded(cloud: Any) -> None:
    cloud.host.broken = "no image for this runtime"
    client = cloud.tpu()
    cloud.host.gate.clear()
    creation = await asyncio.to_thread(begin, client)
    await has_called(cloud, "boot")
    cloud.host.gate.set()
    cloud.host.gate.clear()  # the waiting call proceeds, the next one waits
    await has_called(cloud, "discard")
    assert not await asyncio.to_thread(is_done, client, creation)
    cloud.host.gate.set()
    with pytest.raises(exceptions.GoogleAPICallError):
        await asyncio.to_thread(creation.result, timeout=60)
    assert cloud.host.discarded == [f"{NAME}/workers/0"]


async def test_delete_cancels_pending_creation(cloud: Any) -> None:
    cloud.host.gate.clear()
    client = cloud.tpu()
    creation = await asyncio.to_thread(begin, client)
    await has_called(cloud, "boot")
    deletion = await asyncio.to_thread(client.delete_node, name=NAME, timeout=60)
    await has_called(cloud, "discard")
    cloud.host.gate.set()
    await asyncio.to_thread(deletion.result, timeout=60)
    with pytest.raises(exceptions.Cancelled):
        await asyncio.to_thread(creation.result, timeout=60)
    assert not list(await asyncio.to_thread(client.list_nodes, parent=PARENT, timeout=60))
    assert cloud.host.discarded
    assert cloud.host.count_running() == 0


def test_operations_are_deleted_after_a_week(cloud: Any) -> None:
    client = cloud.tpu()
    operation = begin(client)
    operation.result(timeout=60)
    deletion = client.delete_node(name=NAME, timeout=60)
    deletion.result(timeout=60)
    week = 7 * 24 * 3600
    name = operation.operation.name
    cloud.in_loop(
        cloud.server.store.run, "UPDATE operations SET ended=ended-? WHERE name=?", week, name
    )
    recreated = begin(client)
    with pytest.raises(exceptions.NotFound):
        is_done(client, operation)
    assert is_done(client, deletion)
    recreated.result(timeout=60)


async def test_preemption_sends_notice_and_stops_machines(cloud: Any) -> None:
    client = cloud.tpu()
    fields = {"accelerator_type": "v3-32", "scheduling_config": {"spot": True}}
    await asyncio.to_thread(create, client, **fields)
    cloud.host.gate.clear()
    await cloud.server.registry.service("tpu").preempt(NAME)
    workers = [f"{NAME}/workers/{index}" for index in range(4)]
    await async_until(lambda: len(cloud.host.events) >= 4, "four notices")
    assert sorted(cloud.host.events) == [(worker, "preempted", "TRUE") for worker in workers]
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


async def test_node_deleted_during_notice_stays_deleted(cloud: Any) -> None:
    client = cloud.tpu()
    await asyncio.to_thread(create, client)
    cloud.host.gate.clear()
    await cloud.server.registry.service("tpu").preempt(NAME)
    deletion = asyncio.create_task(asyncio.to_thread(delete, client))
    await has_called(cloud, "discard")
    cloud.host.gate.set()
    await deletion
    pending = cloud.server.registry.operations.pending
    await async_until(lambda: not list(pending("tpu.preempt")), "the end of the preemption")
    assert not list(await asyncio.to_thread(client.list_nodes, parent=PARENT, timeout=60))


async def test_maintenance_event_starts_and_ends(cloud: Any) -> None:
    client = cloud.tpu()
    await asyncio.to_thread(create, client)
    cloud.server.registry.pace.name = "quick"
    await cloud.server.registry.service("tpu").maintain(NAME)
    node_found = await get(client)
    assert node_found.health is tpu_v2.Node.Health.UNHEALTHY_MAINTENANCE
    assert node_found.state is State.READY

    async def is_over() -> bool:
        return (await get(client)).health is not tpu_v2.Node.Health.UNHEALTHY_MAINTENANCE

    await async_until(is_over, "the end of the maintenance")
    assert (await get(client)).health is tpu_v2.Node.Health.HEALTHY
    worker = f"{NAME}/workers/0"
    assert cloud.host.events == [
        (worker, "maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE"),
        (worker, "maintenance-event", "NONE"),
    ]
    assert cloud.host.running == {worker}
