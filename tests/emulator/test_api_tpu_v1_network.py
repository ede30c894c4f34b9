"""Networks and address ranges of TPU nodes (API v1), as its official client sees them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import tpu_v1
from google.cloud.tpu_v1.services.tpu.transports import TpuGrpcTransport

from tests.support.places import PARENT, PROJECT


def client_of(cloud: Any) -> tpu_v1.TpuClient:
    return tpu_v1.TpuClient(transport=TpuGrpcTransport(channel=cloud.channel()))


def node(**fields: Any) -> tpu_v1.Node:
    return tpu_v1.Node(**{"accelerator_type": "v3-8", "tensorflow_version": "2.12.0", **fields})


def create(
    client: tpu_v1.TpuClient,
    node_id: str = "n",
    wanted: tpu_v1.Node | None = None,
    parent: str = PARENT,
) -> tpu_v1.Node:
    operation = client.create_node(
        parent=parent, node_id=node_id, node=wanted or node(), timeout=10
    )
    return operation.result(timeout=20)


async def refusal(cloud: Any, kind: type[Exception], **more: Any) -> str:
    with pytest.raises(kind) as caught:
        await asyncio.to_thread(create, client_of(cloud), **more)
    return str(caught.value.message)  # type: ignore[attr-defined]


async def test_a_range_must_be_free(cloud: Any) -> None:
    """The text is Google's: terraform-provider-google issue 12523."""
    client = client_of(cloud)
    await asyncio.to_thread(create, client, "first", node(cidr_block="10.2.0.0/29"))
    network = f"projects/{PROJECT}/global/networks/default"
    told = (
        f"Cloud TPU received an invalid argument. The 'CIDR Range' value \"10.2.0.0/28\" on "
        f'network "{network}" conflicts with another subnet or object in the (peered) customer '
        "network."
    )
    second = node(cidr_block="10.2.0.0/28")
    assert told in await refusal(cloud, exceptions.BadRequest, node_id="second", wanted=second)
    # us-central1's automatic subnetwork, cloud.google.com/vpc/docs/subnets.
    taken = node(cidr_block="10.128.0.8/29")
    assert "conflicts" in await refusal(cloud, exceptions.BadRequest, wanted=taken)
    deletion = await asyncio.to_thread(client.delete_node, name=f"{PARENT}/nodes/first", timeout=10)
    await asyncio.to_thread(deletion.result, timeout=20)
    await asyncio.to_thread(create, client, "second", second)


async def test_a_range_is_found_when_none_is_given(cloud: Any) -> None:
    def run() -> None:
        client = client_of(cloud)
        first = create(client, "first")
        second = create(client, "second", node(use_service_networking=True))
        third = create(client, "third", node(accelerator_type="v3-32"))
        assert len({first.cidr_block, second.cidr_block, third.cidr_block}) == 3
        assert all(one.cidr_block.endswith("/29") for one in (first, second, third))
        assert second.use_service_networking
        large = create(client, "large", node(accelerator_type="v3-256", cidr_block="10.3.0.0"))
        assert large.cidr_block == "10.3.0.0/26"
        assert len(large.network_endpoints) == 32

    await asyncio.to_thread(run)


async def test_a_missing_network_is_refused(cloud: Any) -> None:
    told = await refusal(cloud, exceptions.NotFound, wanted=node(network="nowhere"))
    assert f"The resource 'projects/{PROJECT}/global/networks/nowhere' was not found" in told


@pytest.mark.parametrize("key", ["id", "number"])
async def test_a_network_may_be_named_in_full(cloud: Any, key: str) -> None:
    project = cloud.server.world.projects.require(PROJECT)[key]
    full = f"https://www.googleapis.com/compute/v1/projects/{project}/global/networks/default"
    made = await asyncio.to_thread(create, client_of(cloud), "n", node(network=full))
    assert made.network == "global/networks/default"
