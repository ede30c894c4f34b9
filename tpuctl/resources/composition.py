"""What a stack consists of: the resources for each kind of TPU, and for things found elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from tpuctl.cloud.clients import Cloud
from tpuctl.engine.graph import reverse
from tpuctl.engine.resource import Resource
from tpuctl.model.inventory import InventoryItem
from tpuctl.model.schema import ControllerSection
from tpuctl.model.stack import Stack
from tpuctl.resources.address import Address
from tpuctl.resources.base import CloudKind
from tpuctl.resources.bucket import Bucket
from tpuctl.resources.controller import Controller
from tpuctl.resources.custom_roles import ProjectRole, RecoveryRole, WatchRole
from tpuctl.resources.disk import DataDisk
from tpuctl.resources.enabled_apis import Services
from tpuctl.resources.iam_grants import AccountGrants, BucketGrants, NodeGrants, ProjectGrants
from tpuctl.resources.iap_tunnel import IapTunnel
from tpuctl.resources.leftover import LeftoverResource
from tpuctl.resources.network import Firewall, Network
from tpuctl.resources.private_access import PrivateAccess
from tpuctl.resources.project import Project
from tpuctl.resources.secret_grants import SecretGrants
from tpuctl.resources.service_account import ServiceAccount
from tpuctl.resources.ssh_deny_rule import SshDenyRule
from tpuctl.resources.tpu_node import TpuNode
from tpuctl.resources.tpu_node_v1 import RemoteNode
from tpuctl.resources.tpu_queued import QueuedNodes

__all__ = ["BY_NAME", "KINDS", "in_other_zones", "kind_of", "resources_of"]

# Every kind there is, in the order in which `status` and `orphans` ask and tell of them.
KINDS: tuple[type[CloudKind], ...] = (
    TpuNode,
    RemoteNode,
    QueuedNodes,
    Controller,
    DataDisk,
    Address,
    Bucket,
    BucketGrants,
    NodeGrants,
    SecretGrants,
    ServiceAccount,
    AccountGrants,
    Network,
    Firewall,
    PrivateAccess,
    IapTunnel,
    Project,
    Services,
    ProjectRole,
    ProjectGrants,
)
BY_NAME = {kind.kind: kind for kind in KINDS}


def kind_of(address: str) -> type[CloudKind]:
    """The kind of an address, such as `node/bert-tpu`; or the one of that name."""
    return BY_NAME[address.partition("/")[0]]


def resources_of(
    stack: Stack,
    cloud: Cloud,
    *,
    sources: tuple[str, ...] = (),
    public_key: Callable[[], str] = str,
    delete_bucket: bool = False,
) -> list[Resource]:
    """Everything that one stack consists of, with its TPU in the zone in use.

    `sources` are the address ranges let in, `public_key` gives the SSH key for the machines: both
    matter to `up` alone.
    """
    network = Network(stack, cloud)
    resources: list[Resource] = [
        Project(stack, cloud),
        Services(stack, cloud),
        network,
        Firewall(network, sources),
        SshDenyRule(network),
        Bucket(stack, cloud, delete=delete_bucket),
        BucketGrants(stack, cloud),
        ProjectGrants(stack, cloud),
        *(SecretGrants(stack, cloud, name) for name in stack.secret_names),
        *(DataDisk.at(stack, cloud, index) for index in range(len(stack.file.tpu.data_disks))),
    ]
    if stack.creates_service_account:
        resources.append(ServiceAccount(stack, cloud))
    if stack.has_limits:
        resources.append(WatchRole(stack, cloud))
    if stack.file.network.ssh != "external":
        resources.append(PrivateAccess(network))
    if stack.has_recovery:
        resources.append(RecoveryRole(stack, cloud))
        if not stack.is_node:  # whose machines act as an account of Google's
            resources.append(AccountGrants(stack, cloud))
    if stack.is_node:
        resources += [RemoteNode(network), NodeGrants(stack, cloud)]
    elif stack.queue is not None:
        resources.append(QueuedNodes(network, public_key))
    else:
        resources.append(TpuNode(network, public_key))
    if stack.controller is not None:
        resources.append(Controller(network, public_key))
    return resources


def in_other_zones(
    items: Iterable[InventoryItem],
    stack: Stack,
    cloud: Cloud,
    resources: Iterable[Resource],
    *,
    delete_bucket: bool = False,
    beside_creation: bool = False,
) -> list[Resource]:
    """Resources for what was found of the stack and is not among the known ones.

    They are only ever deleted, what is used after what uses it: `plan_down` turns all edges round,
    and those of a plan that creates (`beside_creation`) are turned here.
    """
    addresses = {resource.address for resource in resources}
    leftovers = []
    for inventory_item in items:
        zone_stack = _stack_in_zone(stack, inventory_item.zone)
        resource = kind_of(inventory_item.kind).from_inventory(
            inventory_item, zone_stack, cloud, delete_bucket=delete_bucket
        )
        if resource is not None and not (
            inventory_item.serves(stack.zone) and resource.address in addresses
        ):
            leftovers.append((inventory_item, resource))
    after = {}
    for item, resource in leftovers:
        # Resources name what they follow as in the zone in use.
        addresses_there = {
            used.address: leftover.address
            for leftover, used in leftovers
            if leftover.serves(item.zone)
        }
        after[item.address] = frozenset(addresses_there.get(each, each) for each in resource.after)
    if beside_creation:
        users = reverse(after)
        after = {address: (after[address] - after.keys()) | users[address] for address in after}
    return [
        LeftoverResource(resource, item.address, after[item.address])
        for item, resource in leftovers
    ]


def _stack_in_zone(stack: Stack, zone: str) -> Stack:
    """As it would be in a zone, with a controller: one may have been left there."""
    if not zone:
        return stack
    zone_stack = stack.in_zone(zone)
    if zone_stack.controller is None:
        controller = ControllerSection()
        zone_stack = replace(
            zone_stack, file=zone_stack.file.model_copy(update={"controller": controller})
        )
    return zone_stack
