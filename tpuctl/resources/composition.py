"""The resources of a stack, by kind of TPU, and of its leftovers in other zones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from tpuctl.cloud.clients import Cloud
from tpuctl.engine.graph import reverse
from tpuctl.engine.resource import Resource
from tpuctl.model.stack.schema import ControllerSection
from tpuctl.model.stack.stack import Stack
from tpuctl.model.status.inventory import InventoryItem
from tpuctl.resources.access.custom_roles import ProjectRole, RecoveryRole, WatchdogRole
from tpuctl.resources.access.iam_grants import (
    AccountGrants,
    BucketGrants,
    BudgetGrants,
    NodeGrants,
    ProjectGrants,
)
from tpuctl.resources.access.key_use import KeyUse
from tpuctl.resources.access.secret_grants import SecretGrants
from tpuctl.resources.access.service_account import ServiceAccount
from tpuctl.resources.base import CloudKind, StackResource
from tpuctl.resources.leftover import LeftoverResource
from tpuctl.resources.machines.controller import Controller
from tpuctl.resources.machines.disk import DataDisk
from tpuctl.resources.network.address import Address
from tpuctl.resources.network.host_firewall import HostFirewall
from tpuctl.resources.network.iap_tunnel import IapTunnel
from tpuctl.resources.network.nat import Nat
from tpuctl.resources.network.network import Firewall, Network
from tpuctl.resources.network.private_access import PrivateAccess
from tpuctl.resources.network.ssh_deny_rule import SshDenyRule
from tpuctl.resources.network.worker_rule import WorkerRule
from tpuctl.resources.project.bucket import Bucket
from tpuctl.resources.project.budget_bucket import BudgetBucket
from tpuctl.resources.project.enabled_apis import Services
from tpuctl.resources.project.project import Project
from tpuctl.resources.tpu.queued_resource import QueuedNodes, RacedRequest
from tpuctl.resources.tpu.race import Race, RaceEntry
from tpuctl.resources.tpu.raced_nodes import RacedNodes
from tpuctl.resources.tpu.tpu_group import TpuGroup
from tpuctl.resources.tpu.tpu_group_parts import GroupPart, GroupTemplate, WorkloadPolicy
from tpuctl.resources.tpu.tpu_instance import TpuInstance
from tpuctl.resources.tpu.tpu_node import TpuNode
from tpuctl.resources.tpu.tpu_node_v1 import RemoteNode

# All kinds, in the order in which `status` and `orphans` list them.
KINDS: tuple[type[CloudKind], ...] = (
    TpuNode,
    RemoteNode,
    QueuedNodes,
    TpuInstance,
    TpuGroup,
    GroupTemplate,
    WorkloadPolicy,
    Controller,
    DataDisk,
    Address,
    KeyUse,
    Bucket,
    BucketGrants,
    BudgetBucket,
    BudgetGrants,
    NodeGrants,
    SecretGrants,
    ServiceAccount,
    AccountGrants,
    Network,
    Firewall,
    PrivateAccess,
    Nat,
    IapTunnel,
    Project,
    Services,
    ProjectRole,
    ProjectGrants,
)
BY_NAME = {kind.kind: kind for kind in KINDS}


def kind_of(address: str) -> type[CloudKind]:
    """The kind of an address, such as `node/bert-tpu`, or of a kind's name."""
    return BY_NAME[address.partition("/")[0]]


def resources_of(
    stack: Stack,
    cloud: Cloud,
    *,
    sources: tuple[str, ...] = (),
    public_key: Callable[[], str] = str,
    delete_bucket: bool = False,
    race: Race | None = None,
) -> list[Resource]:
    """All resources of a stack, with its TPU in the place in use, or requested in all of a race;
    its controller may be in another zone.

    `sources` are the allowed address ranges, `public_key` returns the machines' SSH key; only `up`
    needs them.
    """
    network = Network(stack, cloud)
    key_use = KeyUse(stack, cloud)
    resources: list[StackResource] = [
        Project(stack, cloud),
        Services(stack, cloud),
        network,
        Firewall(network, sources),
        HostFirewall(network, sources),
        SshDenyRule(network),
        WorkerRule(network),
        key_use,
        Bucket(stack, cloud, delete=delete_bucket, awaits_key=lambda: key_use.has_granted),
        BucketGrants(stack, cloud),
        BudgetBucket(stack, cloud),
        BudgetGrants(stack, cloud),
        ProjectGrants(stack, cloud),
        *(SecretGrants(stack, cloud, name) for name in stack.secret_names),
        *(DataDisk.at(stack, cloud, index) for index in range(len(stack.file.tpu.data_disks))),
        ServiceAccount(stack, cloud),
        WatchdogRole(stack, cloud),
        PrivateAccess(network),
        Nat(network),
        RecoveryRole(stack, cloud, tpu_kinds),
        AccountGrants(stack, cloud),
        NodeGrants(stack, cloud),
        *(
            _tpu(network, public_key)
            if race is None
            else [
                _entry(Network(stack.at(place), cloud), public_key, race) for place in race.places
            ]
        ),
        Controller(Network(stack.in_zone(stack.zone_of_controller), cloud), public_key, tpu=stack),
    ]
    return [
        resource
        for resource in resources
        if isinstance(resource, RaceEntry) or resource.applies(stack)
    ]


def _tpu(network: Network, public_key: Callable[[], str]) -> list[StackResource]:
    """The resources that are a stack's TPU."""
    stack, cloud = network.stack, network.cloud
    resources: list[StackResource] = [
        RemoteNode(network),
        *(
            resource
            for name in stack.nodes
            for resource in (
                TpuInstance(network, public_key, name=name),
                GroupTemplate(network, public_key, name),
                WorkloadPolicy(stack, cloud, name),
                TpuGroup(network, public_key, name=name),
            )
        ),
        QueuedNodes(network, public_key),
        TpuNode(network, public_key),
    ]
    return [resource for resource in resources if resource.applies(stack)]


def _entry(network: Network, public_key: Callable[[], str], race: Race) -> RaceEntry:
    if QueuedNodes.applies(network.stack):
        return RacedRequest(network, public_key, race)
    return RacedNodes(_tpu(network, public_key), race)


def addresses_of(resources: Iterable[Resource]) -> set[str]:
    """The addresses of resources, and of all that an entry of a race consists of."""
    return {
        address
        for resource in resources
        for address in (resource.parts if isinstance(resource, RaceEntry) else (resource.address,))
    }


def tpu_kinds(stack: Stack) -> list[type[CloudKind]]:
    """The kinds of the stack's TPU, and of what it is created from."""
    return [kind for kind in KINDS if belongs_to_tpu(kind) and kind.applies(stack)]


def belongs_to_tpu(kind: type[CloudKind]) -> bool:
    """Whether it is a TPU, or what one is created from: a controller creates and deletes both."""
    return kind.is_tpu or issubclass(kind, GroupPart)


def beside_tpu(resources: Iterable[Resource]) -> set[str]:
    """The addresses of what can be created only once the TPU's zone is decided."""
    return {
        resource.address
        for resource in resources
        if isinstance(resource, StackResource)
        and (resource.is_zonal or resource.is_regional)
        and not resource.is_tpu
    }


def in_other_zones(
    items: Iterable[InventoryItem],
    stack: Stack,
    cloud: Cloud,
    resources: Iterable[Resource],
    *,
    delete_bucket: bool = False,
    beside_creation: bool = False,
) -> list[Resource]:
    """Resources for the stack's items that are not among its current resources.

    They are only deleted, dependencies last: `plan_down` reverses all edges; for a plan that also
    creates (`beside_creation`) they are reversed here.
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
        # Dependencies are addresses in the zone in use.
        addresses_there = {
            used.address: leftover.address
            for leftover, used in leftovers
            if leftover.serves(item.zone)
        }
        after[item.address] = frozenset(
            addresses_there.get(address, address) for address in resource.after
        )
    if beside_creation:
        users = reverse(after)
        after = {address: (after[address] - after.keys()) | users[address] for address in after}
    return [
        LeftoverResource(resource, item.address, after[item.address])
        for item, resource in leftovers
    ]


def _stack_in_zone(stack: Stack, zone: str) -> Stack:
    """The stack as it would be in a zone, with a controller, which may be left over there."""
    if not zone:
        return stack
    zone_stack = replace(stack.in_zone(zone), controller_zone="")
    if zone_stack.controller is None:
        controller = ControllerSection()
        zone_stack = replace(
            zone_stack, file=zone_stack.file.model_copy(update={"controller": controller})
        )
    return zone_stack
