"""Remember what came of requests for TPUs: on this computer, and in the stack's record; and try
first where one was granted.

Only outcomes of requests for a stack: none is made to learn about capacity.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from tpuctl.cloud.clients import Cloud
from tpuctl.engine.resource import Resource
from tpuctl.errors import NoCapacity, QuotaExceeded, TpuctlError
from tpuctl.model.capacity.capacity_history import (
    CapacityAttempt,
    read_attempts,
    remember_attempts,
)
from tpuctl.model.capacity.forecast_file import read_forecast
from tpuctl.model.events import Outcome
from tpuctl.model.plan import Action, Plan, Result
from tpuctl.model.stack.candidates import Candidate
from tpuctl.model.stack.stack import Stack
from tpuctl.resources.project.stack_record import Record
from tpuctl.resources.tpu.node_lifecycle import NodeLifecycle
from tpuctl.resources.tpu.queued_resource import QueuedNodes
from tpuctl.resources.tpu.raced_nodes import RacedNodes

RECENT = timedelta(days=7)  # older outcomes say little about capacity now


def by_capacity(stack: Stack, attempts: Iterable[CapacityAttempt], now: datetime) -> Stack:
    """The stack with its candidates in another order: first those whose last request was granted,
    then those without any, then those that were refused, the longest ago first."""
    last = {
        (attempt.type, attempt.capacity, attempt.zone, attempt.api): attempt
        for attempt in sorted(attempts, key=lambda attempt: attempt.time)
        if now - attempt.time <= RECENT
    }

    def rank(place: Candidate) -> tuple[int, float]:
        tpu = stack.alternatives[place.alternative]
        attempt = last.get((tpu.type, tpu.capacity, place.zone, place.api))
        if attempt is None:
            return 1, 0.0
        return (2, attempt.time.timestamp()) if attempt.error else (0, 0.0)

    candidates = tuple(sorted(stack.candidates, key=rank))
    return replace(stack.at(candidates[0]), candidates=candidates)


def in_preferred_order(stack: Stack, cloud: Cloud) -> Stack:
    """The stack with its candidates in the order to try them in."""
    if stack.file.tpu.prefer != "capacity":
        return stack
    return by_capacity(stack, read_attempts(cloud.endpoint.name), datetime.now(UTC))


async def record_attempts(
    stack: Stack,
    cloud: Cloud,
    plan: Plan,
    resources: Sequence[Resource],
    results: Mapping[str, Result],
) -> None:
    """Remember the outcome of each request for a TPU that a plan made. Never raises TpuctlError.

    Outcomes that other computers have written to the stack's record are remembered here, too.
    """
    attempts = [
        attempt
        for resource in resources
        if isinstance(resource, NodeLifecycle | QueuedNodes | RacedNodes)
        and (attempt := _attempt(plan, resource, results[resource.address])) is not None
    ]
    if not attempts:
        return
    recorded: Sequence[CapacityAttempt] = ()
    with suppress(TpuctlError):
        forecast = read_forecast(cloud.endpoint.name, stack)
        contents = await Record(stack, cloud).update(
            lambda before: before.with_attempts(attempts, forecast)
        )
        recorded = contents.capacity
    remember_attempts(cloud.endpoint.name, [*recorded, *attempts])


def _attempt(
    plan: Plan, resource: NodeLifecycle | QueuedNodes | RacedNodes, result: Result
) -> CapacityAttempt | None:
    """None for an outcome that says nothing about capacity."""
    stack, change = resource.stack, plan.change(resource.address)
    is_request = not isinstance(resource, NodeLifecycle)  # for all nodes
    if change.action is not Action.CREATE and not (is_request and "readiness" in change.fields):
        return None
    if isinstance(result.error, NoCapacity | QuotaExceeded):
        error = result.error.diagnostics[0].summary
    elif result.outcome is Outcome.DONE and not result.because:  # otherwise withdrawn
        error = ""
    else:
        return None
    waited = None if isinstance(resource, NodeLifecycle) else resource.waited_seconds
    return CapacityAttempt(
        datetime.now(UTC).replace(microsecond=0),
        stack.zone,
        stack.accelerator.name,
        stack.file.tpu.capacity,
        round(result.seconds if waited is None else waited, 1),
        error,
        len(stack.nodes) if is_request else 1,
        stack.api,
    )
