"""Concurrent walk of a dependency graph: each node is visited once its dependencies are done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from graphlib import TopologicalSorter

from tpuctl.model.events import Outcome
from tpuctl.model.plan import Result

Graph = Mapping[str, frozenset[str]]
Visit = Callable[[str], Awaitable[Result]]


def reverse(after: Graph) -> dict[str, frozenset[str]]:
    """The same graph with every edge reversed."""
    return {node: frozenset(other for other in after if node in after[other]) for node in after}


def order(after: Graph) -> list[str]:
    """A topological order. Raises graphlib.CycleError, which names the cycle."""
    return list(TopologicalSorter(after).static_order())


async def walk(after: Graph, visit: Visit) -> dict[str, Result]:
    """Visit every node after its dependencies, as concurrently as the graph allows.

    A visit reports failure in its result. Dependents of a failed node are not visited: they are
    SKIPPED, because of the address that failed first.
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
    except BaseExceptionGroup as errors:  # a bug in a visit: re-raised, other visits cancelled
        raise errors.exceptions[0] from None
    return {node: task.result() for node, task in tasks.items()}
