"""What a stack consists of: the resources for each kind of TPU, and for things found elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from tpuctl.cloud.clients import Cloud
from tpuctl.engine.graph import reverse
from tpuctl.engine.resource import Resource
from tpuctl.model.inventory import Found
from tpuctl.model.schema import ControllerSection
from tpuctl.model.stack import Stack
from tpuctl.resources.bucket import Bucket
from tpuctl.resources.closing import Closing
from tpuctl.resources.controller import Controller
from tpuctl.resources.disk import DataDisk
from tpuctl.resources.elsewhere import Elsewhere
from tpuctl.resources.iam import AccountGrants, BucketGrants, NodeGrants, ProjectGrants
from tpuctl.resources.identity import ServiceAccount
from tpuctl.resources.network import Firewall, Network
from tpuctl.resources.private_access import PrivateAccess
from tpuctl.resources.project import Project
from tpuctl.resources.roles import RecoveryRole, WatchRole, has_limits, is_recovered
from tpuctl.resources.secrets import SecretGrants
from tpuctl.resources.services import Services
from tpuctl.resources.tpu_node import TpuNode
from tpuctl.resources.tpu_node_v1 import RemoteNode
from tpuctl.resources.tpu_queued import QueuedNodes

__all__ = ["in_other_zones", "resources_of"]


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
    if stack.makes_service_account:
        found.append(ServiceAccount(stack, cloud))
    if has_limits(stack):
        found.append(WatchRole(stack, cloud))
    if stack.file.network.ssh != "external":
        found.append(PrivateAccess(network))
    if is_recovered(stack):
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
    found: Iterable[Found],
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
    addresses = {resource.address for resource in known}
    leftovers = [
        (item, resource)
        for item in found
        if (resource := _resource_for(item, stack, cloud, delete_bucket)) is not None
        and not (item.serves(stack.zone) and resource.address in addresses)
    ]
    after = {}
    for item, resource in leftovers:
        # Resources name what they follow as in the zone in use.
        places = {used.address: it.address for it, used in leftovers if it.serves(item.zone)}
        after[item.address] = frozenset(places.get(each, each) for each in resource.after)
    if beside_creation:
        users = reverse(after)
        after = {address: (after[address] - after.keys()) | users[address] for address in after}
    return [Elsewhere(resource, item.address, after[item.address]) for item, resource in leftovers]


def _resource_for(found: Found, stack: Stack, cloud: Cloud, delete_bucket: bool) -> Resource | None:
    """The resource that can take a found thing away; None for what has no zone of its own."""
    there = stack.in_zone(found.zone)
    if there.controller is None:
        controller = ControllerSection()
        there = replace(there, file=there.file.model_copy(update={"controller": controller}))
    network = Network(there, cloud)
    if found.kind == "node":
        return TpuNode(network, str, name=found.name)
    if found.kind == "queued":
        return QueuedNodes(network, str)
    if found.kind == "tpu":
        return RemoteNode(network)
    if found.kind == "controller":
        return Controller(network, str)
    if found.kind == "disk":
        return DataDisk.left(there, cloud, found.name)
    if found.kind == "bucket":
        return Bucket(replace(stack, bucket=found.name), cloud, delete=delete_bucket)
    return None
