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
from tpuctl.resources.leftover import Elsewhere
from tpuctl.resources.network import Firewall, Network
from tpuctl.resources.private_access import PrivateAccess
from tpuctl.resources.project import Project
from tpuctl.resources.secret_grants import SecretGrants
from tpuctl.resources.service_account import ServiceAccount
from tpuctl.resources.ssh_deny_rule import Closing
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
BY_NAME = {one.kind: one for one in KINDS}


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
    found: list[Resource] = [
        Project(stack, cloud),
        Services(stack, cloud),
        network,
        Firewall(network, sources),
        Closing(network),
        Bucket(stack, cloud, delete=delete_bucket),
        BucketGrants(stack, cloud),
        ProjectGrants(stack, cloud),
        *(SecretGrants(stack, cloud, one) for one in stack.secret_names),
        *(DataDisk.at(stack, cloud, index) for index in range(len(stack.file.tpu.data_disks))),
    ]
    if stack.creates_service_account:
        found.append(ServiceAccount(stack, cloud))
    if stack.has_limits:
        found.append(WatchRole(stack, cloud))
    if stack.file.network.ssh != "external":
        found.append(PrivateAccess(network))
    if stack.has_recovery:
        found.append(RecoveryRole(stack, cloud))
        if not stack.is_node:  # whose machines act as an account of Google's
            found.append(AccountGrants(stack, cloud))
    if stack.is_node:
        found += [RemoteNode(network), NodeGrants(stack, cloud)]
    elif stack.queue is not None:
        found.append(QueuedNodes(network, public_key))
    else:
        found.append(TpuNode(network, public_key))
    if stack.controller is not None:
        found.append(Controller(network, public_key))
    return found


def in_other_zones(
    found: Iterable[InventoryItem],
    stack: Stack,
    cloud: Cloud,
    known: Iterable[Resource],
    *,
    delete_bucket: bool = False,
    beside_creation: bool = False,
) -> list[Resource]:
    """Resources for what was found of the stack and is not among the known ones.

    They are only ever deleted, what is used after what uses it: `plan_down` turns all edges round,
    and those of a plan that creates (`beside_creation`) are turned here.
    """
    addresses = {one.address for one in known}
    leftovers = []
    for one in found:
        there = _there(stack, one.zone)
        resource = kind_of(one.kind).of_found(one, there, cloud, delete_bucket=delete_bucket)
        if resource is not None and not (one.serves(stack.zone) and resource.address in addresses):
            leftovers.append((one, resource))
    after = {}
    for item, resource in leftovers:
        # Resources name what they follow as in the zone in use.
        places = {used.address: it.address for it, used in leftovers if it.serves(item.zone)}
        after[item.address] = frozenset(places.get(each, each) for each in resource.after)
    if beside_creation:
        users = reverse(after)
        after = {address: (after[address] - after.keys()) | users[address] for address in after}
    return [Elsewhere(resource, item.address, after[item.address]) for item, resource in leftovers]


def _there(stack: Stack, zone: str) -> Stack:
    """As it would be in a zone, with a controller: one may have been left there."""
    if not zone:
        return stack
    there = stack.in_zone(zone)
    if there.controller is None:
        controller = ControllerSection()
        there = replace(there, file=there.file.model_copy(update={"controller": controller}))
    return there
