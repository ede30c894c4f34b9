"""Bringing a stack up, looking at it, and taking it down with proof."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tpuctl.cloud.clients import Cloud
from tpuctl.cloud.errors import ApiDisabled
from tpuctl.engine.apply import apply
from tpuctl.engine.planner import Snapshot, observe, plan_down, plan_up
from tpuctl.engine.resource import Resource
from tpuctl.errors import Denied, NotFound
from tpuctl.model.events import Emit, Outcome
from tpuctl.model.names import STACK_LABEL
from tpuctl.model.plan import Action, Plan, Result
from tpuctl.model.stack import Stack
from tpuctl.model.status import NodeStatus, Remaining
from tpuctl.resources.bucket import Bucket
from tpuctl.resources.iam import BucketGrants
from tpuctl.resources.identity import ServiceAccount
from tpuctl.resources.network import Firewall, Network
from tpuctl.resources.project import Project
from tpuctl.resources.services import Services
from tpuctl.resources.tpu_node import TpuNode

__all__ = [
    "Teardown",
    "apply_plan",
    "look_for_nodes",
    "prepare_down",
    "prepare_up",
    "prove_down",
    "resources_of",
]


def resources_of(
    stack: Stack,
    cloud: Cloud,
    *,
    sources: tuple[str, ...] = (),
    public_key: Callable[[], str] = str,
    delete_bucket: bool = False,
) -> list[Resource]:
    """Everything that one stack consists of.

    `sources` are the address ranges let in, `public_key` gives the SSH key for the workers: both
    matter to `up` alone.
    """
    network = Network(stack, cloud)
    found: list[Resource] = [
        Project(stack, cloud),
        Services(stack, cloud),
        network,
        Firewall(network, sources),
        Bucket(stack, cloud, delete=delete_bucket),
        BucketGrants(stack, cloud),
        TpuNode(network, public_key),
    ]
    if stack.makes_service_account:
        found.append(ServiceAccount(stack, cloud))
    return found


async def prepare_up(resources: Sequence[Resource]) -> Plan:
    """Ask the cloud, then decide."""
    return plan_up(resources, await observe(resources))


@dataclass(frozen=True)
class Teardown:
    """What `down` is about to do, with nodes of the stack in zones it no longer names."""

    plan: Plan
    resources: tuple[Resource, ...]


async def prepare_down(resources: Sequence[Resource], stack: Stack, cloud: Cloud) -> Teardown:
    """Like prepare_up, and looks into every zone for the stack's nodes."""
    everything = list(resources)
    main = next(one for one in resources if isinstance(one, TpuNode))
    for found in await look_for_nodes(stack, cloud):
        if found.zone != stack.zone or found.name != main.name:
            everything.append(main.elsewhere(found.zone, found.name))
    return Teardown(plan_down(everything, await observe(everything)), tuple(everything))


async def apply_plan(plan: Plan, resources: Sequence[Resource], emit: Emit) -> dict[str, Result]:
    """Carry a plan out. The first failure is raised after everything else has ended."""
    results = await apply(plan, resources, emit)
    for result in results.values():
        if result.outcome is Outcome.FAILED and result.error is not None:
            raise result.error
    return results


async def prove_down(teardown: Teardown) -> tuple[Remaining, ...]:
    """Ask the cloud again for everything that was to go, and say what is still there."""
    snapshot: Snapshot = await observe(teardown.resources)
    proof = []
    for one in teardown.resources:
        asked = teardown.plan.change(one.address)
        now = one.removal(snapshot[one.address])
        if now.is_work:
            state = "remains"
        elif now.action is Action.LEAVE and not asked.is_work and snapshot[one.address] is not None:
            state = "kept"
        else:
            state = "gone"
        proof.append(Remaining(one.address, state, now.because, one.is_billable))
    return tuple(proof)


async def look_for_nodes(stack: Stack, cloud: Cloud) -> list[NodeStatus]:
    """The stack's nodes in every zone, by label."""
    client = cloud.client("tpu")

    def listed(**options: Any) -> list[Any]:
        request = {"parent": f"projects/{stack.project}/locations/-"}
        return [
            node
            for node in client.list_nodes(request, **options)
            if node.labels.get(STACK_LABEL) == stack.name
        ]

    try:
        nodes = await cloud.call("nodes", listed)
    except (NotFound, ApiDisabled):
        return []
    except Denied as error:
        if "or it may not exist" in str(error):
            return []
        raise
    return [node_status(node) for node in nodes]


def node_status(node: Any) -> NodeStatus:
    """Our view of an API node."""
    parts = node.name.split("/")
    endpoints = list(node.network_endpoints)
    ports = [one for one in node.metadata.get("tpuctl-ssh-port", "").split(",") if one]
    if len(ports) < len(endpoints):
        ports = [ports[0] if ports else "22"] * len(endpoints)
    return NodeStatus(
        name=parts[-1],
        id=str(node.id),
        zone=parts[3],
        state=node.state.name,
        health=node.health.name,
        accelerator_type=node.accelerator_type,
        runtime=node.runtime_version,
        created=datetime.fromtimestamp(node.create_time.timestamp(), UTC)
        if node.create_time
        else None,
        addresses=tuple(one.access_config.external_ip or one.ip_address for one in endpoints),
        ssh_ports=tuple(int(port) for port in ports),
    )
