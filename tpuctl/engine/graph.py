"""The concurrent walk of a dependency graph: each node as soon as what it follows is done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from graphlib import TopologicalSorter

from tpuctl.model.events import Outcome
from tpuctl.model.plan import Result

__all__ = ["Visit", "order", "reverse", "walk"]

Graph = Mapping[str, frozenset[str]]
Visit = Callable[[str], Awaitable[Result]]


def reverse(after: Graph) -> dict[str, frozenset[str]]:
    """The same graph with every edge turned round."""
    return {node: frozenset(other for other in after if node in after[other]) for node in after}


def order(after: Graph) -> list[str]:
    """One legal order. Raises graphlib.CycleError, with the names in it."""
    return list(TopologicalSorter(after).static_order())


async def walk(after: Graph, visit: Visit) -> dict[str, Result]:
    """Visit every node after all that it follows, as many at a time as the graph allows.

    A visit reports failure by its result. What follows a failed node is not visited: it ends as
    SKIPPED, because of the address at the root of the failure.
    """
    tasks: dict[str, asyncio.Task[Result]] = {}

    async def run(node: str) -> Result:
        blocked: Result | None = None
        for dependency in sorted(after[node]):
            result = await tasks[dependency]
            if result.outcome in (Outcome.FAILED, Outcome.SKIPPED):
                blocked = blocked or result
        if blocked:
            root = blocked.because if blocked.outcome is Outcome.SKIPPED else blocked.address
            return Result(node, Outcome.SKIPPED, because=root)
        return await visit(node)

    try:
        async with asyncio.TaskGroup() as group:
            for node in order(after):
                tasks[node] = group.create_task(run(node), name=node)
    except BaseExceptionGroup as errors:  # a bug in a visit: shown as it is, all others cancelled
        raise errors.exceptions[0] from None
    return {node: task.result() for node, task in tasks.items()}
