"""The nodes of a stack that is up, and where they are."""

from __future__ import annotations

from tpuctl.cloud.clients import Cloud
from tpuctl.errors import NotFound
from tpuctl.flows.inventory import look_for_nodes
from tpuctl.model.stack import Stack
from tpuctl.model.status import NodeStatus

__all__ = ["nodes_of"]


async def nodes_of(stack: Stack, cloud: Cloud) -> list[NodeStatus]:
    """All of them in the zone where the stack is at work, in their order.

    Raises NotFound when there is none, or when one of several is gone.
    """
    found = await look_for_nodes(cloud, stack.project, stack.name)
    if not found:
        raise NotFound(
            "No node",
            f"stack {stack.name} has no node",
            hint="Bring it up with\n    tpuctl up",
        )
    first = min(found, key=lambda node: (node.zone != stack.zone, node.state != "READY"))
    if len(stack.nodes) == 1:
        return [first]
    there = {node.name: node for node in found if node.zone == first.zone}
    gone = [name for name in stack.nodes if name not in there]
    if gone:
        raise NotFound(
            "Node is gone",
            f"stack {stack.name} has no {', '.join(gone)} in {first.zone}",
            hint="Bring it up again with\n    tpuctl up",
        )
    return [there[name] for name in stack.nodes]
