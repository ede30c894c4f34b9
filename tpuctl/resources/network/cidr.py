"""Finds a free address range for a TPU node, which must not overlap others in its network."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network
from typing import Any

from tpuctl.cloud.clients import Cloud
from tpuctl.errors import Conflict, Denied, Usage
from tpuctl.model.stack.stack import Stack
from tpuctl.polling import gather_all

# Auto mode networks allocate subnetworks from 10.128.0.0/9, region by region from its lower end
# (cloud.google.com/vpc/docs/subnets). 10.240.0.0/12 is above all of them, and the TPU node docs use
# it in examples. A future region's range there would be among the ranges in use.
POOL = IPv4Network("10.240.0.0/12")


def free_range(used: Iterable[str], prefix: int, pool: IPv4Network = POOL) -> str:
    """The first block of that prefix length in the pool that overlaps no used range.

    Ignores what is not an IPv4 range (empty, IPv6). Raises Conflict if none is free.
    """
    size = 1 << (32 - prefix)
    start = int(pool.network_address)
    for other in sorted(_networks(used), key=lambda network: int(network.network_address)):
        if int(other.network_address) >= start + size:
            break
        after = int(other.broadcast_address) + 1
        start = max(start, -(-after // size) * size)
    if start + size - 1 > int(pool.broadcast_address):
        raise Conflict(
            "No free address range",
            f"every /{prefix} in {pool} is in use in the network",
            hint="Choose a free range:\n    network: {node_range: 10.1.2.0/29}",
        )
    return f"{IPv4Address(start)}/{prefix}"


def _networks(texts: Iterable[str]) -> list[IPv4Network]:
    networks = []
    for text in texts:
        try:
            networks.append(IPv4Network(text, strict=False))
        except ValueError:
            continue
    return networks


async def ranges_in_use(stack: Stack, cloud: Cloud, network: str) -> frozenset[str]:
    """Every range that a new one in the network must not overlap, as far as the APIs report.

    Subnetworks with their secondary ranges, TPU nodes in every zone, ranges reserved for peerings,
    and routes that peered networks export to the region. What the caller may not list is left out:
    the API rejects a range that is in use.
    """
    parts = await gather_all(
        part(stack, cloud, network) for part in (_subnetworks, _nodes, _reserved, _peered)
    )
    return frozenset().union(*parts)


async def _subnetworks(stack: Stack, cloud: Cloud, network: str) -> set[str]:
    client = cloud.client("subnetworks")

    def listed(**options: Any) -> set[str]:
        found: set[str] = set()
        for _, scope in client.aggregated_list(project=stack.project, **options):
            for subnetwork in scope.subnetworks:
                if _is_named(subnetwork.network, network):
                    found.add(subnetwork.ip_cidr_range)
                    found.update(range_.ip_cidr_range for range_ in subnetwork.secondary_ip_ranges)
        return found

    return await cloud.call("subnetworks", listed)


async def _nodes(stack: Stack, cloud: Cloud, network: str) -> set[str]:
    """Ranges of TPU nodes in all networks: peered networks must not overlap either."""
    client = cloud.client("tpu_v1")

    def listed(**options: Any) -> set[str]:
        request = {"parent": f"projects/{stack.project}/locations/-"}
        return {node.cidr_block for node in client.list_nodes(request, **options)}

    return await cloud.call("TPU nodes", listed)


async def _reserved(stack: Stack, cloud: Cloud, network: str) -> set[str]:
    client = cloud.client("global_addresses")

    def listed(**options: Any) -> set[str]:
        return {
            f"{address.address}/{address.prefix_length}"
            for address in client.list(project=stack.project, **options)
            if address.purpose == "VPC_PEERING" and _is_named(address.network, network)
        }

    try:
        return await cloud.call("reserved addresses", listed)
    except Denied:
        return set()


async def _peered(stack: Stack, cloud: Cloud, network: str) -> set[str]:
    client = cloud.client("networks")
    described = await cloud.call(
        f"network {network}", client.get, project=stack.project, network=network
    )

    def listed(peering: str, **options: Any) -> set[str]:
        request = {
            "project": stack.project,
            "network": network,
            "region": stack.region,
            "peering_name": peering,
            "direction": "INCOMING",
        }
        return {route.dest_range for route in client.list_peering_routes(request, **options)}

    ranges: set[str] = set()
    for peering in described.peerings:
        try:
            ranges |= await cloud.call(f"peering {peering.name}", listed, peering.name)
        except (Denied, Usage):  # an inactive peering has no routes to list
            continue
    return ranges


def _is_named(link: str, network: str) -> bool:
    return link.rpartition("/")[2] == network
