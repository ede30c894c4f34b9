"""`plan --forecast`: what to expect of a hunt for the stack's TPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from tpuctl.capacity_trace import CapacityTrace, ZoneTrace, read_trace
from tpuctl.errors import Usage
from tpuctl.model.capacity.capacity_history import CapacityAttempt, read_attempts
from tpuctl.model.capacity.forecast import Forecast, forecast
from tpuctl.model.capacity.forecast_file import remember_forecast
from tpuctl.model.capacity.hunt import Hunt
from tpuctl.model.cost.stack_cost import cost_of
from tpuctl.model.stack.stack import Stack

HOURS = 24.0  # of work, if neither the user nor limits.max_hours says how many
SETUP_SECONDS = 300.0  # "TPU VM 3-10 min" in public reports, 2019-2026
POLL_SECONDS = 600.0  # the longest pause of a job's recovery between requests


def forecast_up(
    stack: Stack, cloud: str, traces: Sequence[str] = (), hours: float | None = None
) -> Forecast:
    """The forecast for a job with so many hours of work on the stack's TPU, which is remembered.

    `traces` are files, as `FILE`, or as `ZONE=FILE` if they apply to one zone. Raises Usage.
    """
    zones, end = _zones(stack, traces)
    expected = forecast(
        datetime.now(UTC).replace(microsecond=0),
        hours or stack.file.limits.max_hours or HOURS,
        attempts_for(stack, read_attempts(cloud)),
        Hunt(zones, SETUP_SECONDS, 0.0 if stack.queue is not None else POLL_SECONDS)
        if traces
        else None,
        end,
        is_spot=stack.is_spot,
        per_hour={
            candidate.zone: cost_of(stack.at(candidate)).per_hour for candidate in stack.candidates
        },
    )
    remember_forecast(cloud, stack, expected)
    return expected


def attempts_for(stack: Stack, attempts: Sequence[CapacityAttempt]) -> Sequence[CapacityAttempt]:
    """Those for the stack's type and capacity, in its zones."""
    kind = (stack.accelerator.name, stack.file.tpu.capacity)
    return [
        attempt
        for attempt in attempts
        if (attempt.type, attempt.capacity) == kind and attempt.zone in stack.zones
    ]


def _zones(stack: Stack, traces: Sequence[str]) -> tuple[Sequence[ZoneTrace], float]:
    """The room for the whole stack, by candidate in order, and when the shortest file ends."""
    files: list[tuple[str, CapacityTrace]] = []
    for text in traces:
        zone, separator, path = text.partition("=")
        is_limited = bool(separator) and zone in stack.zones
        files.append((zone, read_trace(Path(path))) if is_limited else ("", read_trace(Path(text))))
    zones = [
        trace
        for candidate in stack.candidates
        for limit, file in files
        if limit in ("", candidate.zone) and (trace := _room(stack.at(candidate), file)) is not None
    ]
    if traces and not zones:
        raise Usage(
            "Zones not in the trace",
            f"no trace has {stack.accelerator.name} in {', '.join(stack.zones)}",
            hint="A line of such a trace:\n"
            f"    0,{stack.zone},{stack.accelerator.name},{len(stack.nodes)}",
            where="--trace",
        )
    return zones, min((file.seconds for _, file in files), default=0.0)


def _room(stack: Stack, file: CapacityTrace) -> ZoneTrace | None:
    """How often the stack fits into its zone, by a file that has it."""
    name, needed = stack.accelerator.name, len(stack.nodes)
    if stack.is_compute:
        name, needed = stack.machine.machine_type, needed * stack.machine.hosts
    trace = file.find(stack.zone, name)
    if trace is None:
        return None
    return replace(trace, zone=stack.zone, nodes=tuple(room // needed for room in trace.nodes))
