"""What Google does to nodes unasked: it takes spot ones away, and it maintains machines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from tpuctl.emulator.state.operations import Arguments, Effect, Record
from tpuctl.emulator.tpu.nodes import Health, Nodes, NodeState
from tpuctl.emulator.tpu.offerings import bad_request
from tpuctl.emulator.wire.registry import World

__all__ = ["Interruptions"]

# Not a place in any project: nobody finds these operations in a list.
_NOWHERE = "interruptions"
# The value for machines that cannot move while they run, as those with TPUs cannot:
# docs.cloud.google.com/compute/docs/metadata/getting-live-migration-notice
_EVENT = "TERMINATE_ON_HOST_MAINTENANCE"


class Interruptions:
    """Preemption and maintenance of nodes."""

    def __init__(self, world: World, nodes: Nodes) -> None:
        self._world = world
        self._nodes = nodes
        self._service = nodes.effect.partition(".")[0]
        self.effects: Mapping[str, Effect] = {
            f"{self._service}.preempt": Effect(self._preempted, self._notice),
            f"{self._service}.maintain": Effect(self._maintained, self._wait, None, nodes.describe),
        }

    def preempt(self, node: Any) -> Record:
        """Give notice on the machines, and end them about half a minute later.

        docs.cloud.google.com/compute/docs/instances/preemptible: 30 seconds, told by the metadata
        server. On-demand nodes are never preempted by Google; here the owner may want it.
        """
        self._require_ready("preempt", node)
        arguments = {"target": node.name, "at": self._due("tpu.preempt")}
        return self._world.operations.begin(_NOWHERE, f"{self._service}.preempt", arguments, 0.0)

    def maintain(
        self, node: Any, workers: Iterable[int] | None = None, *, api: str = "v2"
    ) -> Record:
        """Announce maintenance on the machines and take the announcement back after a while.

        Their programs go on: that is easier than at Google, where the machines may be replaced.
        """
        self._require_ready("maintain", node)
        chosen = list(range(len(node.network_endpoints)) if workers is None else workers)
        with self._world.store.transaction():
            node.health = Health.UNHEALTHY_MAINTENANCE
            self._nodes.save(node)
            self._announce(node.name, self._due("tpu.maintain"))
            arguments = {
                "target": node.name,
                "verb": "simulateMaintenanceEvent",
                "workers": chosen,
                "at": self._due("tpu.maintain"),
                "api": api,
            }
            parent = node.name.partition("/nodes/")[0]
            effect = f"{self._service}.maintain"
            return self._world.operations.begin(parent, effect, arguments, 0.0)

    def _announce(self, name: str, until: float | None) -> None:
        """What API v2alpha1 tells of maintenance: Node.upcomingMaintenance (cloud_tpu.proto)."""
        extras = self._nodes.extras(name)
        extras.pop("upcomingMaintenance", None)
        if until is not None:
            began, ends = (datetime.fromtimestamp(one, UTC) for one in (time.time(), until))
            began_text, ends_text = (f"{one:%Y-%m-%dT%H:%M:%S}Z" for one in (began, ends))
            extras["upcomingMaintenance"] = {
                "type": "UNSCHEDULED",
                "canReschedule": False,
                "windowStartTime": began_text,
                "windowEndTime": ends_text,
                "latestWindowStartTime": began_text,
                "maintenanceStatus": "ONGOING",
            }
        self._nodes.keep_extras(name, extras)

    def _due(self, step: str) -> float:
        return time.time() + self._world.pace.seconds(step)

    @staticmethod
    def _require_ready(verb: str, node: Any) -> None:
        if node.state != NodeState.READY:
            raise bad_request(
                f"{verb} is not supported while in state {NodeState(node.state).name}"
            )

    def _tell(self, name: str, workers: Iterable[int] | None, key: str, value: str) -> None:
        node = self._nodes.find(name)
        if node is None:
            return
        names = self._nodes.worker_names(name, len(node.network_endpoints))
        for index, machine in enumerate(names):
            if workers is None or index in workers:
                self._world.host.set_event(machine, key, value)

    async def _notice(self, arguments: Arguments, tell: Callable[[str], None]) -> None:
        self._tell(arguments["target"], None, "preempted", "TRUE")
        await asyncio.sleep(max(0.0, arguments["at"] - time.time()))
        node = self._nodes.find(arguments["target"])
        if node is not None and node.state == NodeState.READY:
            await self._nodes.shut(node)

    def _preempted(self, arguments: Arguments) -> None:
        node = self._nodes.find(arguments["target"])
        if node is None or node.state != NodeState.READY:
            return  # it was deleted or stopped meanwhile
        node.state = NodeState.PREEMPTED
        node.health = Health.HEALTH_UNSPECIFIED
        self._nodes.save(node)
        if getattr(node, "queued_resource", ""):  # a TPU node never has one
            self._nodes.gone(node.queued_resource)

    async def _wait(self, arguments: Arguments, tell: Callable[[str], None]) -> None:
        self._tell(arguments["target"], arguments["workers"], "maintenance-event", _EVENT)
        await asyncio.sleep(max(0.0, arguments["at"] - time.time()))
        self._tell(arguments["target"], arguments["workers"], "maintenance-event", "NONE")

    def _maintained(self, arguments: Arguments) -> Any:
        node = self._nodes.find(arguments["target"])
        if node is None:
            raise bad_request("The node was deleted.")
        self._announce(node.name, None)
        if node.health == Health.UNHEALTHY_MAINTENANCE:
            node.health = (
                Health.HEALTHY if node.state == NodeState.READY else Health.HEALTH_UNSPECIFIED
            )
            self._nodes.save(node)
        return self._nodes.told(node, arguments)
