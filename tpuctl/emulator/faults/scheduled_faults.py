"""Faults that happen once to nodes and machines at a scheduled time, independent of any call."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from tpuctl.emulator.faults.fault import SCHEDULED, Fault, Faults
from tpuctl.emulator.machines.interface import Host, MachineError
from tpuctl.emulator.state.errors import ApiError, missing
from tpuctl.emulator.state.text import did_you_mean

log = logging.getLogger(__name__)


class Interruptible(Protocol):
    """An API whose resources have machines that Google can preempt or maintain."""

    async def preempt(self, name: str) -> None: ...

    async def maintain(self, name: str) -> None: ...


class ScheduledFaults:
    """Triggers scheduled faults when they are due, and undoes removed ones where possible."""

    def __init__(
        self,
        faults: Faults,
        host: Host,
        names: Callable[[], list[str]],
        service_of: Callable[[str], Interruptible],
        in_background: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """`names` lists the resources with machines; `service_of` returns a resource's service."""
        self._faults = faults
        self._host = host
        self._names = names
        self._in_background = in_background
        self._handlers: dict[str, Callable[[Fault, str], Awaitable[None]]] = {
            "preempt": lambda fault, name: service_of(name).preempt(name),
            "maintenance": lambda fault, name: service_of(name).maintain(name),
            "host-unreachable": self._fail_host,
            "disk-full": self._fill_disk,
        }

    def resume(self) -> None:
        """Reschedule pending faults after a restart."""
        for fault in self._faults.all():
            if fault.kind in SCHEDULED and not fault.is_exhausted():
                self._in_background(self._trigger(fault))

    def schedule(self, fault: Fault) -> None:
        """Schedule a new fault. ApiError if it is due now and impossible."""
        if fault.kind not in SCHEDULED:
            return
        if not fault.get("seconds"):
            name = self._full_name(fault.fields["node"])
            if fault.kind in ("host-unreachable", "disk-full"):
                self._machines(fault, name)
        self._faults.update(fault, due=time.time() + fault.get("seconds", 0))
        self._in_background(self._trigger(fault))

    async def undo(self, fault: Fault) -> None:
        """Undo a removed fault: disk limits are lifted. Other faults cannot be undone."""
        if not fault.get("active"):
            return
        for name in self._host.machines():
            if _targets(fault, name):
                try:
                    await self._host.limit_disk(name, self.disk_limit(name))
                except MachineError as error:
                    log.warning("%s: %s", name, error)

    def disk_limit(self, machine: str) -> int | None:
        """How many bytes the programs of a starting machine may write."""
        limits = [
            int(fault.get("after_bytes", 0))
            for fault in self._faults.all()
            if fault.get("active") and _targets(fault, machine)
        ]
        return min(limits, default=None)

    def describe(self, fault: Fault) -> dict[str, Any]:
        """What only the machines know of a fault."""
        if not fault.get("active"):
            return {}
        host = self._host
        free_by_machine = [
            host.disk_free(name) for name in host.machines() if _targets(fault, name)
        ]
        return {
            "free_bytes": min(
                (free_bytes for free_bytes in free_by_machine if free_bytes is not None),
                default=None,
            )
        }

    async def _trigger(self, fault: Fault) -> None:
        await asyncio.sleep(max(0.0, fault.fields["due"] - time.time()))
        if not self._faults.can_strike(fault):
            return
        error_text = ""
        try:
            await self._handlers[fault.kind](fault, self._full_name(fault.fields["node"]))
        except (ApiError, MachineError) as error:
            error_text = str(error)
        except Exception as error:
            log.exception("%s of %s failed", fault.kind, fault.fields["node"])
            error_text = repr(error)
        if self._faults.can_strike(fault):
            self._faults.record_use(fault, error_text)

    async def _fail_host(self, fault: Fault, name: str) -> None:
        is_silent = fault.get("mode", "silent") == "silent"
        for machine in self._machines(fault, name):
            await self._host.fail_host(machine, is_silent=is_silent)

    async def _fill_disk(self, fault: Fault, name: str) -> None:
        """Limit the disks until the fault is removed; machines that boot later are limited too."""
        for machine in self._machines(fault, name):
            await self._host.limit_disk(machine, int(fault.get("after_bytes", 0)))
        self._faults.update(fault, active=True)

    def _full_name(self, node: str) -> str:
        """The full name of a node or an instance, given by full name or by a unique id."""
        names = self._names()
        matches = [name for name in names if node in (name, name.rpartition("/")[2])]
        if len(matches) != 1:
            problem = "not found" if not matches else "is ambiguous; use its full name"
            ids = [name.rpartition("/")[2] for name in names]
            raise missing(f"Node {node} {problem}.{did_you_mean(node, [*ids, *names])}")
        return matches[0]

    def _machines(self, fault: Fault, name: str) -> list[str]:
        """The running machines of a node that the fault applies to."""
        of_node = [machine for machine in self._host.machines() if _node_of(machine) == name]
        if not of_node:
            raise missing(f"{name} has no running machine.")
        matching = [machine for machine in of_node if _targets(fault, machine)]
        if not matching:
            workers = sorted(
                int(machine.rpartition("/workers/")[2]) for machine in of_node if "/wo" in machine
            )
            explanation = f"its workers are 0 to {workers[-1]}" if workers else "it is one machine"
            raise missing(f"{name} has no worker {fault.get('worker')}: {explanation}.")
        return matching


def _node_of(machine: str) -> str:
    """The full name of a machine's node; for an instance its own name."""
    return machine.partition("/workers/")[0].replace("/v1nodes/", "/nodes/")


def _targets(fault: Fault, machine: str) -> bool:
    full, worker = _node_of(machine), machine.rpartition("/workers/")[2]
    node = fault.fields["node"]
    if node not in (full, full.rpartition("/")[2]):
        return False
    return "worker" not in fault.fields or str(fault.fields["worker"]) == worker
