"""Observe resources, and compute a plan from the snapshot alone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from tpuctl.engine.graph import order, reverse
from tpuctl.engine.resource import Resource
from tpuctl.errors import Denied, TpuctlError
from tpuctl.model.plan import Plan

__all__ = ["Snapshot", "graph_of", "observe", "observe_each", "plan_down", "plan_up"]

Snapshot = Mapping[str, Any | None]


def graph_of(resources: Sequence[Resource]) -> dict[str, frozenset[str]]:
    """Edges among these resources; edges to other resources are dropped."""
    addresses = {resource.address for resource in resources}
    return {resource.address: resource.after & addresses for resource in resources}


async def observe(resources: Sequence[Resource]) -> Snapshot:
    """Read all resources from the cloud concurrently.

    Denied on a resource whose dependency is absent means that it is absent too: Google answers
    "permission denied" for resources of a project that does not exist. If the dependency is found,
    another command may have created it between the two answers: those denied are asked once more.
    Other errors are raised.
    """
    snapshot, errors = await observe_each(resources)
    for error in errors.values():
        raise error
    return snapshot


async def observe_each(
    resources: Sequence[Resource],
) -> tuple[Snapshot, Mapping[str, TpuctlError]]:
    """Like `observe`, with the errors of the resources that could not be read, by address.

    In the snapshot, these are None.
    """
    observed = _find_absent(resources, await _answers(resources))
    denied = [item for item in resources if isinstance(observed[item.address], Denied)]
    observed = _find_absent(resources, {**observed, **await _answers(denied)})
    errors: dict[str, TpuctlError] = {}
    for address, answer in observed.items():
        if isinstance(answer, TpuctlError):
            errors[address] = answer
        elif isinstance(answer, BaseException):
            raise answer
    return {**observed, **dict.fromkeys(errors)}, errors


async def _answers(resources: Sequence[Resource]) -> dict[str, Any]:
    """The state of each resource, or the exception that reading it raised."""
    answers = await asyncio.gather(
        *(resource.observe() for resource in resources), return_exceptions=True
    )
    return {resource.address: answer for resource, answer in zip(resources, answers, strict=True)}


def _find_absent(resources: Sequence[Resource], answers: Mapping[str, Any]) -> dict[str, Any]:
    """The answers, with None for Denied where a dependency is absent."""
    observed = dict(answers)
    after = graph_of(resources)
    absent: set[str] = set()
    for address in order(after):
        if isinstance(observed[address], Denied) and after[address] & absent:
            observed[address] = None
        if observed[address] is None:
            absent.add(address)
    return observed


def plan_up(resources: Sequence[Resource], snapshot: Snapshot) -> Plan:
    """The plan to reach the desired state. Raises Conflict for a resource of another owner."""
    after = graph_of(resources)
    by_address = {resource.address: resource for resource in resources}
    return Plan(
        tuple(by_address[address].diff(snapshot[address]) for address in order(after)), after
    )


def plan_down(resources: Sequence[Resource], snapshot: Snapshot) -> Plan:
    """The plan to delete the stack: the same graph in reverse order."""
    after = reverse(graph_of(resources))
    by_address = {resource.address: resource for resource in resources}
    return Plan(
        tuple(by_address[address].removal(snapshot[address]) for address in order(after)), after
    )
