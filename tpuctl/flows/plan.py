"""`plan`: what `up` would do, in which zone, what it costs and the quota it needs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tpuctl.cloud.address import caller_address_range
from tpuctl.cloud.clients import Cloud
from tpuctl.engine.planner import observe, plan_up
from tpuctl.engine.resource import Resource
from tpuctl.errors import Diagnostic, TpuctlError
from tpuctl.flows.context import Context
from tpuctl.flows.controller_recovery import recovery_plan
from tpuctl.flows.inventory import list_resources
from tpuctl.flows.permissions import require_permissions
from tpuctl.flows.quota import read_limits, read_region, report_of
from tpuctl.flows.zones import home_zone
from tpuctl.model.cost import Cost
from tpuctl.model.events import WarningIssued
from tpuctl.model.inventory import ResourceKind
from tpuctl.model.plan import Action, Plan
from tpuctl.model.quota import QuotaReport
from tpuctl.model.stack import Stack
from tpuctl.model.stack_cost import cost_of, costs_elsewhere
from tpuctl.remote.iap import RELAY_RANGE
from tpuctl.resources.composition import in_other_zones, kind_of, resources_of
from tpuctl.resources.controller import Controller
from tpuctl.resources.disk import DataDisk
from tpuctl.resources.secret_grants import forgotten_secrets
from tpuctl.resources.tpu_node_v1 import announcement

__all__ = ["Prepared", "access_warnings", "allowed_sources", "plan", "prepare_up"]

TUNNEL = "iap.tunnelInstances.accessViaIAP"
ROLE = "roles/iap.tunnelResourceAccessor"


@dataclass(frozen=True)
class Prepared:
    """A plan for `up` with what it needs to be carried out. `stack` is in the zone in use."""

    stack: Stack
    plan: Plan
    resources: Sequence[Resource]
    quota: QuotaReport = field(
        default_factory=QuotaReport
    )  # empty where a zone was tried after another

    @property
    def cost(self) -> Cost:
        """What the stack costs when it is up."""
        return cost_of(self.stack)

    @property
    def costs_elsewhere(self) -> dict[str, Cost]:
        """By zone, where `up` goes when this one refuses."""
        return costs_elsewhere(self.stack)

    @property
    def creates_tpu_node(self) -> bool:
        """Whether a TPU node is to be made, which Google does for few projects any more."""
        return any(
            change.action is Action.CREATE and change.address.startswith("tpu/")
            for change in self.plan
        )


async def plan(context: Context, zone: str | None = None) -> Prepared:
    """What `up` would do, asking the cloud but changing nothing. Raises InvalidStack, Denied.

    In this zone, else where the stack is already. On the stack's controller no more than making
    the TPU, which is all that it may do.
    """
    stack, cloud, keys = context.stack, context.cloud, context.keys
    stack.require_valid()
    if context.controller is not None:
        return Prepared(stack, *await recovery_plan(stack, cloud, keys.public_lines))
    sources = await allowed_sources(stack, cloud)
    preparing = prepare_up(stack, cloud, sources=sources, public_key=keys.public_lines, zone=zone)
    prepared = await require_permissions(stack, cloud, preparing)
    warnings = await access_warnings(stack, cloud, prepared.plan)
    if zone is None and prepared.creates_tpu_node:
        context.emit(WarningIssued(announcement(prepared.stack)))
    for warning in (*warnings, *prepared.quota.shortfalls):
        context.emit(WarningIssued(warning))
    return prepared


async def prepare_up(
    stack: Stack,
    cloud: Cloud,
    *,
    sources: tuple[str, ...],
    public_key: Callable[[], str],
    zone: str | None = None,
) -> Prepared:
    """Ask the cloud, then decide: in this zone, else where the stack is already.

    What the stack has in other zones is from tries that were given up, and goes.
    """

    def may_have(kind: type[ResourceKind]) -> bool:
        if kind is Controller:
            return stack.controller is not None
        if kind is DataDisk:
            return bool(stack.file.tpu.data_disks)
        return kind.is_zonal

    limits = asyncio.create_task(read_limits(stack, cloud)) if zone is None else None
    region = None
    try:
        in_project = await list_resources(
            cloud, stack.project, stack=stack.name, include=may_have, other_nodes=zone is None
        )
        of_stack = [item for item in in_project if item.stack == stack.name]
        here = stack.in_zone(zone or home_zone(stack, of_stack))
        region = asyncio.create_task(read_region(here, cloud)) if zone is None else None
        resources = resources_of(here, cloud, sources=sources, public_key=public_key)
        resources += in_other_zones(
            [item for item in of_stack if not item.serves(here.zone)],
            here,
            cloud,
            resources,
            beside_creation=True,
        )
        resources += await forgotten_secrets(here, cloud, resources)
        plan = plan_up(resources, await observe(resources))
        if limits is None or region is None:
            return Prepared(here, plan, resources)
        quota = report_of(here, plan, in_project, await limits, await region)
        return Prepared(here, plan, resources, quota)
    finally:
        for task in (limits, region):
            if task is not None:
                task.cancel()  # where it has not ended, nobody needs its answer any more


async def allowed_sources(stack: Stack, cloud: Cloud) -> tuple[str, ...]:
    """The address ranges that the stack's firewall rule lets in.

    The ranges that the file names, else this machine's own address; with IAP its relay's alone.
    """
    network = stack.file.network
    if network.ssh == "iap":
        return (RELAY_RANGE,)
    return network.allow_from or (await caller_address_range(cloud.endpoint),)


async def access_warnings(stack: Stack, cloud: Cloud, plan: Plan) -> Sequence[Diagnostic]:
    """What a plan that makes machines without external addresses should be known to mean."""
    makes = any(
        change.action is Action.CREATE and kind_of(change.address).has_ssh for change in plan
    )
    if stack.file.network.ssh == "external" or not makes:
        return ()
    warnings = [_without_addresses(stack)]
    if stack.file.network.ssh == "iap" and not await _may_tunnel(stack, cloud):
        warnings.append(_without_role(stack))
    return warnings


def _without_addresses(stack: Stack) -> Diagnostic:
    network = "default" if stack.file.network.name == "auto" else stack.file.network.name
    return Diagnostic(
        "Machines without external addresses",
        "they reach the bucket and Google's APIs, and nothing else unless the network has "
        "Cloud NAT: no PyPI, no downloads of data",
        "Bring packages along (job: {wheels: wheels}), or make Cloud NAT, which costs by the hour:"
        f"\n    gcloud compute routers create nat --project={stack.project} "
        f"--network={network} --region={stack.region}"
        f"\n    gcloud compute routers nats create nat --project={stack.project} --router=nat "
        f"--region={stack.region} --auto-allocate-nat-external-ips --nat-all-subnet-ip-ranges",
    )


async def _may_tunnel(stack: Stack, cloud: Cloud) -> bool:
    """Whether the project grants it. Where that cannot be asked, nothing is claimed."""
    request = {"resource": f"projects/{stack.project}", "permissions": [TUNNEL]}
    client = cloud.client("projects")
    try:
        answer = await cloud.call("permissions", client.test_iam_permissions, request)
    except TpuctlError:
        return True
    return TUNNEL in answer.permissions


def _without_role(stack: Stack) -> Diagnostic:
    return Diagnostic(
        "IAP may not let you through",
        f"project {stack.project} does not grant you {TUNNEL}; "
        "it may be granted on machines, or under a condition",
        f"Somebody who may grants it with\n    gcloud projects add-iam-policy-binding "
        f"{stack.project} --member=user:YOU --role={ROLE}",
    )
