"""Nodes with pending operations, with the official client."""

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


def begin(client: Any) -> Any:
    node = tpu_v2.Node(accelerator_type="v3-8", runtime_version="tpu-ubuntu2204-base")
    return client.create_node(parent=PARENT, node_id="n", node=node, timeout=60)


def is_done(client: Any, operation: Any) -> bool:
    request = {"name": operation.operation.name}
    status = client.get_operation(request=request, timeout=60)
    return bool(status.done)


async def has_called(cloud: Any, method: str) -> None:
    async with asyncio.timeout(20):
        while method not in cloud.host.called:
            await asyncio.sleep(0.01)


async def test_operations_last_as_long_as_the_pace(make_cloud: Any) -> None:
    cloud = await make_cloud(pace="real")  # takes minutes after the machines have booted
    cloud.enable("tpu", "compute")
    client = cloud.tpu()
    creation = await asyncio.to_thread(begin, client)
    await async_until(cloud.host.count_running, "a machine running")
    node = await asyncio.to_thread(client.get_node, name=NAME, timeout=60)
    assert node.state is State.CREATING
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
