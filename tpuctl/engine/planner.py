"""Observe resources, and compute a plan from the snapshot alone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from tpuctl.engine.graph import order, reverse
from tpuctl.engine.resource import Resource
from tpuctl.errors import ApiDisabled, Denied, TpuctlError
from tpuctl.model.plan import Plan

Snapshot = Mapping[str, Any | None]
PROJECT = "project/"


def graph_of(resources: Sequence[Resource]) -> dict[str, frozenset[str]]:
    """Edges among these resources; edges to other resources are dropped."""
    addresses = {resource.address for resource in resources}
    return {resource.address: resource.after & addresses for resource in resources}


async def observe(resources: Sequence[Resource], *, enables_apis: bool = False) -> Snapshot:
    """Read all resources from the cloud concurrently.

    Denied on a resource of a project that is absent means that it is absent too: Google answers
    "permission denied" there. If the project is found, another command may have created it between
    the two answers: those denied are asked once more. Other errors are raised, except those of
    disabled APIs for a plan that enables them first: it creates or adopts what is there.
    """
    snapshot, errors = await observe_each(resources)
    for error in errors.values():
        if not (enables_apis and isinstance(error, ApiDisabled)):
            raise error
    return snapshot


async def observe_each(
    resources: Sequence[Resource],
) -> tuple[Snapshot, Mapping[str, TpuctlError]]:
    """Like `observe`, with the errors of the resources that could not be read, by address.

    In the snapshot, these are None.
    """
    observed = _find_absent(await _answers(resources))
    denied = [
        item
        for item in resources
        if isinstance(answer := observed[item.address], Denied)
        and not isinstance(answer, ApiDisabled)
    ]
    observed = _find_absent({**observed, **await _answers(denied)})
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


def _find_absent(answers: Mapping[str, Any]) -> dict[str, Any]:
    """The answers, with None for Denied if the project is absent: nothing can be read in it."""
    has_answer = any(
        (answer is not None and not isinstance(answer, Denied)) or isinstance(answer, ApiDisabled)
        for answer in answers.values()
    )
    is_absent = any(address.startswith(PROJECT) and answers[address] is None for address in answers)
    if has_answer or not is_absent:
        return dict(answers)
    return {
        address: None if isinstance(answer, Denied) else answer
        for address, answer in answers.items()
    }


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
