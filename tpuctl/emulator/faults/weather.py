"""Weather: capacity that comes and goes as a trace says, in time that passes faster.

Where a trace knows a zone and a type, requests beyond its room are refused, and spot nodes beyond
it are preempted. Other zones and types are not affected.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpuctl.capacity_trace import ANY, CapacityTrace, read_trace
from tpuctl.emulator.faults.fault import Fault, Faults, require_known
from tpuctl.emulator.machines.interface import MachineError
from tpuctl.emulator.state.errors import ApiError, invalid
from tpuctl.errors import Usage

log = logging.getLogger(__name__)

KIND = "weather"
_TICK_SECONDS = 0.1


@dataclass(frozen=True)
class Occupant:
    """A node or instance that takes room in its zone."""

    name: str  # full name
    id: str  # unlike the name, not that of a later one
    type: str
    is_running: bool
    is_spot: bool

    @property
    def zone(self) -> str:
        return self.name.split("/")[3]


class Weather:
    """The room for nodes under the faults of this kind."""

    def __init__(
        self,
        faults: Faults,
        occupants: Callable[[], Iterable[Occupant]],
        preempt: Callable[[str], Awaitable[None]],
        in_background: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._faults = faults
        self._occupants = occupants
        self._preempt = preempt
        self._in_background = in_background
        self._traces: dict[str, CapacityTrace] = {}  # by the fault's id

    def begin(self, fault: Fault) -> None:
        """Start the trace of a new fault. ApiError if it is invalid."""
        if fault.kind != KIND:
            return
        trace = _read(fault)
        for zone in trace.zones:
            if zone.zone != ANY:
                where = f"{trace.path}:{zone.line}: "
                require_known("zone", zone.zone, where)
                require_known("type", zone.type, where)
        self._traces[fault.id] = trace
        self._faults.update(fault, since=time.time())
        self._in_background(self._watch(fault))

    def resume(self) -> None:
        """Continue after a restart. A fault whose trace cannot be read any more has no effect."""
        for fault in self._faults.pending(KIND):
            try:
                self._traces[fault.id] = _read(fault)
            except ApiError as error:
                log.error("%s: %s", fault.id, error.message)
                self._faults.update(fault, error=error.message)
            else:
                self._in_background(self._watch(fault))

    def refuses(self, attributes: Mapping[str, str], nodes: int = 1) -> bool:
        """Whether more nodes in a zone have no room; counts as a use."""
        for fault in self._faults_without_room(attributes, nodes):
            self._faults.record_use(fault)
            return True
        return False

    def has_room(self, attributes: Mapping[str, str], nodes: int = 1) -> bool:
        """The opposite, without counting: for requests that wait."""
        return not any(self._faults_without_room(attributes, nodes))

    def describe(self, fault: Fault) -> dict[str, Any]:
        """How far the trace has come."""
        return {"hours": round(_seconds(fault) / 3600, 2)} if fault.id in self._traces else {}

    def _faults_without_room(self, attributes: Mapping[str, str], nodes: int) -> Iterator[Fault]:
        zone, type_name = attributes["zone"], attributes["type"]
        for fault in self._faults.pending(KIND):
            room = self._room(fault, zone, type_name)
            if room is not None:
                kind = (zone, type_name)
                used = sum((user.zone, user.type) == kind for user in self._occupants())
                if used + nodes > room:
                    yield fault

    def _room(self, fault: Fault, zone: str, type_name: str) -> int | None:
        """The nodes that a zone has room for now; None if the fault does not limit them."""
        trace = self._traces.get(fault.id)
        if trace is None or not fault.matches({"zone": zone, "type": type_name}):
            return None
        of_zone = trace.find(zone, type_name)
        return None if of_zone is None else of_zone.nodes_at(_seconds(fault))

    async def _watch(self, fault: Fault) -> None:
        """Preempt what is beyond the room, as long as the fault exists."""
        preempted: set[Occupant] = set()  # those that run until their notice ends
        while self._faults.can_strike(fault):
            await asyncio.sleep(_TICK_SECONDS)
            surplus = set(self._surplus(fault))
            for occupant in surplus - preempted:
                error_text = ""
                try:
                    await self._preempt(occupant.name)
                except (ApiError, MachineError, LookupError) as error:  # it is ending already
                    error_text = str(error)
                self._faults.record_use(fault, error_text)
            preempted = surplus

    def _surplus(self, fault: Fault) -> Iterator[Occupant]:
        """The spot nodes beyond the room of their zone. Which ones Google would take is a guess."""
        running: dict[tuple[str, str], list[Occupant]] = {}
        for occupant in self._occupants():
            if occupant.is_running:
                running.setdefault((occupant.zone, occupant.type), []).append(occupant)
        for (zone, type_name), group in running.items():
            room = self._room(fault, zone, type_name)
            if room is not None and len(group) > room:
                spot = [occupant for occupant in group if occupant.is_spot]
                yield from spot[: len(group) - room]


def _read(fault: Fault) -> CapacityTrace:
    path = Path(fault.fields["trace"])
    if not path.is_absolute():
        raise invalid(f"trace must be an absolute path, not {str(path)!r}.")
    try:
        return read_trace(path)
    except Usage as error:
        raise invalid(error.diagnostics[0].text) from error


def _seconds(fault: Fault) -> float:
    """The time in the trace; a clock that was set back stops it."""
    since, speed = float(fault.fields["since"]), float(fault.get("speed", 1.0))
    return float(fault.get("hours", 0.0)) * 3600 + max(0.0, time.time() - since) * speed
