"""Interruptions of nodes: preemption and maintenance events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from tpuctl.emulator.state.operations import Arguments, Effect, Record
from tpuctl.emulator.tpu.nodes import Health, Nodes, NodeState, require_state
from tpuctl.emulator.tpu.offerings import bad_request
from tpuctl.emulator.wire.registry import Registry

# Not a project location: no list contains these operations.
_INTERNAL_PARENT = "interruptions"
# The value for machines that do not support live migration, such as those with TPUs:
# docs.cloud.google.com/compute/docs/metadata/getting-live-migration-notice
_EVENT = "TERMINATE_ON_HOST_MAINTENANCE"


class Interruptions:
    """Preempts and maintains nodes."""

    def __init__(self, registry: Registry, nodes: Nodes) -> None:
        self._registry = registry
        self._nodes = nodes
        self._service = nodes.effect.partition(".")[0]
        self.effects: Mapping[str, Effect] = {
            f"{self._service}.preempt": Effect(self._finish_preemption, self._preempt_machines),
            f"{self._service}.maintain": Effect(
                self._finish_maintenance, self._run_maintenance, None, nodes.operation_metadata
            ),
        }

    def preempt(self, node: Any) -> Record:
        """Preempt the node's machines, with notice.

        Google never preempts on-demand nodes; here it is allowed, for tests.
        """
        require_state("preempt", node, NodeState.READY)
        arguments = {"target": node.name, "at": self._deadline("tpu.preempt")}
        return self._registry.operations.begin(
            _INTERNAL_PARENT, f"{self._service}.preempt", arguments, 0.0
        )

    def maintain(
        self, node: Any, workers: Iterable[int] | None = None, *, api: str = "v2"
    ) -> Record:
        """Announce maintenance on the machines and clear the event after a while.

        Programs keep running, unlike at Google, where machines may be replaced.
        """
        require_state("maintain", node, NodeState.READY)
        worker_indices = list(range(len(node.network_endpoints)) if workers is None else workers)
        with self._registry.store.transaction():
            node.health = Health.UNHEALTHY_MAINTENANCE
            self._nodes.save(node)
            self._set_upcoming_maintenance(node.name, self._deadline("tpu.maintain"))
            arguments = {
                "target": node.name,
                "verb": "simulateMaintenanceEvent",
                "workers": worker_indices,
                "at": self._deadline("tpu.maintain"),
                "api": api,
            }
            parent = node.name.partition("/nodes/")[0]
            effect = f"{self._service}.maintain"
            return self._registry.operations.begin(parent, effect, arguments, 0.0)

    def _set_upcoming_maintenance(self, name: str, until: float | None) -> None:
        """Set or clear Node.upcomingMaintenance of API v2alpha1 (cloud_tpu.proto)."""
        extras = self._nodes.extras(name)
        extras.pop("upcomingMaintenance", None)
        if until is not None:
            began, ends = (datetime.fromtimestamp(seconds, UTC) for seconds in (time.time(), until))
            began_text, ends_text = (
                f"{timestamp:%Y-%m-%dT%H:%M:%S}Z" for timestamp in (began, ends)
            )
            extras["upcomingMaintenance"] = {
                "type": "UNSCHEDULED",
                "canReschedule": False,
                "windowStartTime": began_text,
                "windowEndTime": ends_text,
                "latestWindowStartTime": began_text,
                "maintenanceStatus": "ONGOING",
            }
        self._nodes.save_extras(name, extras)

    def _deadline(self, step: str) -> float:
        return time.time() + self._registry.pace.seconds(step)

    def _machines(self, name: str) -> list[str]:
        node = self._nodes.find(name)
        return [] if node is None else self._nodes.machine_names(node)

    def _set_event(self, name: str, workers: Iterable[int], value: str) -> None:
        """Set the value of `maintenance-event` on the machines of some workers."""
        for index, machine in enumerate(self._machines(name)):
            if index in workers:
                self._registry.host.set_event(machine, "maintenance-event", value)

    async def _preempt_machines(self, arguments: Arguments, report: Callable[[str], None]) -> None:
        notice = max(0.0, arguments["at"] - time.time())
        preempt = self._registry.host.preempt
        machines = self._machines(arguments["target"])
        await asyncio.gather(*(preempt(machine, notice) for machine in machines))

    def _finish_preemption(self, arguments: Arguments) -> None:
        node = self._nodes.find(arguments["target"])
        if node is None or node.state != NodeState.READY:
            return  # deleted or stopped meanwhile
        node.state = NodeState.PREEMPTED
        node.health = Health.HEALTH_UNSPECIFIED
        self._nodes.save(node)
        if getattr(node, "queued_resource", ""):  # v1 nodes have none
            self._nodes.on_node_removed(node.queued_resource)

    async def _run_maintenance(self, arguments: Arguments, report: Callable[[str], None]) -> None:
        self._set_event(arguments["target"], arguments["workers"], _EVENT)
        await asyncio.sleep(max(0.0, arguments["at"] - time.time()))
        self._set_event(arguments["target"], arguments["workers"], "NONE")

    def _finish_maintenance(self, arguments: Arguments) -> Any:
        node = self._nodes.find(arguments["target"])
        if node is None:
            raise bad_request("The node was deleted.")
        self._set_upcoming_maintenance(node.name, None)
        if node.health == Health.UNHEALTHY_MAINTENANCE:
            node.health = (
                Health.HEALTHY if node.state == NodeState.READY else Health.HEALTH_UNSPECIFIED
            )
            self._nodes.save(node)
        return self._nodes.as_response(node, arguments)
