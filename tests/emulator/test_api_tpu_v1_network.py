"""Networks and address ranges of TPU nodes (API v1), with the official client."""

from __future__ import annotations

from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import tpu_v1
from google.cloud.tpu_v1.services.tpu.transports import TpuGrpcTransport

from tests.support.locations import PARENT, PROJECT


def client_of(cloud: Any) -> tpu_v1.TpuClient:
    return tpu_v1.TpuClient(transport=TpuGrpcTransport(channel=cloud.channel()))


def node(**fields: Any) -> tpu_v1.Node:
    return tpu_v1.Node(**{"accelerator_type": "v3-8", "tensorflow_version": "2.12.0", **fields})


def create(
    client: tpu_v1.TpuClient,
    node_id: str = "n",
    requested: tpu_v1.Node | None = None,
    parent: str = PARENT,
) -> tpu_v1.Node:
    operation = client.create_node(
        parent=parent, node_id=node_id, node=requested or node(), timeout=60
    )
    return operation.result(timeout=60)


def refusal(cloud: Any, kind: type[Exception], **more: Any) -> str:
    with pytest.raises(kind) as caught:
        create(client_of(cloud), **more)
    return str(caught.value.message)  # type: ignore[attr-defined]


def test_overlapping_range_is_rejected(cloud: Any) -> None:
    """Google's wording: terraform-provider-google issue 12523."""
    client = client_of(cloud)
    create(client, "first", node(cidr_block="10.2.0.0/29"))
    network = f"projects/{PROJECT}/global/networks/default"
    expected = (
        f"Cloud TPU received an invalid argument. The 'CIDR Range' value \"10.2.0.0/28\" on "
        f'network "{network}" conflicts with another subnet or object in the (peered) customer '
        "network."
    )
    second = node(cidr_block="10.2.0.0/28")
    assert expected in refusal(cloud, exceptions.BadRequest, node_id="second", requested=second)
    # us-central1's automatic subnetwork, cloud.google.com/vpc/docs/subnets.
    overlapping = node(cidr_block="10.128.0.8/29")
    assert "conflicts" in refusal(cloud, exceptions.BadRequest, requested=overlapping)
    deletion = client.delete_node(name=f"{PARENT}/nodes/first", timeout=60)
    deletion.result(timeout=60)
    create(client, "second", second)


def test_free_range_is_chosen(cloud: Any) -> None:
    client = client_of(cloud)
    first = create(client, "first")
    second = create(client, "second", node(use_service_networking=True))
    third = create(client, "third", node(accelerator_type="v3-32"))
    assert len({first.cidr_block, second.cidr_block, third.cidr_block}) == 3
    assert all(item.cidr_block.endswith("/29") for item in (first, second, third))
    assert second.use_service_networking
    large = create(client, "large", node(accelerator_type="v3-256", cidr_block="10.3.0.0"))
    assert large.cidr_block == "10.3.0.0/26"
    assert len(large.network_endpoints) == 32


def test_missing_network_is_rejected(cloud: Any) -> None:
    message = refusal(cloud, exceptions.NotFound, requested=node(network="nowhere"))
    assert f"The resource 'projects/{PROJECT}/global/networks/nowhere' was not found" in message


@pytest.mark.parametrize("key", ["id", "number"])
def test_network_by_full_link(cloud: Any, key: str) -> None:
    project = cloud.in_loop(cloud.server.registry.projects.require, PROJECT)[key]
    full = f"https://www.googleapis.com/compute/v1/projects/{project}/global/networks/default"
    created = create(client_of(cloud), "n", node(network=full))
    assert created.network == "global/networks/default"
