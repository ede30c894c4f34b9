"""What happens to a queued resource from acceptance to its end, in any number of processes.

The states and their meaning are those of cloud_tpu.proto (QueuedResourceState.State) and
docs.cloud.google.com/tpu/docs/queued-resources. The order of what is persisted lets a server that
was killed go on where the last one stopped.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from tpuctl.emulator.machines.interface import MachineError
from tpuctl.emulator.state.errors import ApiError
from tpuctl.emulator.state.operations import Arguments, Effect, Record
from tpuctl.emulator.tpu.admission import Admission
from tpuctl.emulator.tpu.nodes import Health, Nodes, NodeState
from tpuctl.emulator.tpu.offerings import already_exists
from tpuctl.emulator.tpu.queued_resource_store import (
    Document,
    QueuedStore,
    is_flex_start,
    is_spot,
    node_names,
    node_of,
    state_of,
)
from tpuctl.emulator.wire.registry import World

__all__ = ["Engine"]

_POLL = 0.1  # seconds between looks for capacity
# Not a place in any project: nobody finds these operations in a list.
_NOWHERE = "queue"
_EXPIRED = "The 'valid until' start timing constraint expired."  # words of cloud_tpu.proto
_NO_FLEX_START = (
    'FLEX_START provisioning model is not supported for accelerator type "{type}" in location '
    '"{zone}"'
)


class Engine:
    """Drives queued resources; `told(document, api)` shows one as a version of the API does."""

    def __init__(
        self,
        world: World,
        nodes: Nodes,
        admission: Admission,
        store: QueuedStore,
        told: Callable[[Document, str], Any],
    ) -> None:
        self._world = world
        self._nodes = nodes
        self._admission = admission
        self._store = store
        self._told = told
        self.effects: Mapping[str, Effect] = {
            "tpu.queued.create": Effect(
                self._accepted, self._admit, self._never_was, nodes.describe
            ),
            "tpu.queued.drive": Effect(lambda arguments: None, self._drive, self._broken),
            "tpu.queued.delete": Effect(self._deleted, self._clear, None, nodes.describe),
            "tpu.queued.reset": Effect(self._shown, self._reboot, None, nodes.describe),
        }
        self._steps = {
            "ACCEPTED": self._accept,
            "WAITING_FOR_RESOURCES": self._wait,
            "PROVISIONING": self._provision,
            "ACTIVE": self._run,
            "SUSPENDING": self._suspend,
        }

    def begin(self, verb: str, name: str, api: str) -> Record:
        """Start one of the operations that clients see: create, delete or reset.

        Creation is over when the request stands in the queue or was refused: gcloud waits for the
        operation and then for the state (public logs of 2026: the refusal of flex-start came in
        the operation, the wait for capacity after it).
        """
        step = {"delete": "tpu.nodes.delete"}.get(verb, f"tpu.queued.{verb}")
        arguments = {"target": name, "verb": verb, "api": api}
        parent = name.partition("/queuedResources/")[0]
        seconds = self._world.pace.seconds(step)
        return self._world.operations.begin(parent, f"tpu.queued.{verb}", arguments, seconds)

    def halt(self, name: str) -> None:
        """End whatever is under way on it."""
        for verb in ("create", "drive", "reset"):
            for record in self._world.operations.pending(f"tpu.queued.{verb}"):
                if record.arguments["target"] == name:
                    self._world.operations.abort(
                        record.name, ApiError("CANCELLED", "The queued resource is being deleted.")
                    )

    def settle(self, name: str) -> None:
        """Take notice that one of its nodes is gone.

        Deleting the nodes oneself suspends the request: Google's samples delete the node first and
        the request then (java-docs-samples#9613). That the preemption of one node of several
        takes the others along is a guess.
        """
        document = self._store.find(name)
        if document is None or state_of(document) not in ("PROVISIONING", "ACTIVE"):
            return
        nodes = [node for each in node_names(document) if (node := self._nodes.find(each))]
        is_preempted = any(node.state == NodeState.PREEMPTED for node in nodes)
        if nodes and not is_preempted:
            return
        self.halt(name)
        initiator = "SERVICE" if is_preempted else "USER"
        self._store.enter(document, "SUSPENDING", initiator=initiator)
        self._begin_drive(name)

    def _begin_drive(self, name: str) -> None:
        self._world.operations.begin(_NOWHERE, "tpu.queued.drive", {"target": name}, 0.0)

    # Creation.

    async def _admit(self, arguments: Arguments, tell: Callable[[str], None]) -> None:
        document = self._must(arguments)
        _, project_id, _, zone, _, _ = document["name"].split("/")
        for spec in document["tpu"]["nodeSpec"]:
            if is_flex_start(document) and not self._admission.offers_flex_start(zone, spec):
                text = _NO_FLEX_START.format(type=node_of(spec).accelerator_type, zone=zone)
                raise ApiError("INVALID_ARGUMENT", text)  # public zone tables of 2026
        if "reservationName" in document or document.get("guaranteed", {}).get("reserved"):
            name = document.get("reservationName", "")
            self._admission.check_reservation(project_id, zone, name)

    def _accepted(self, arguments: Arguments) -> Any:
        document = self._must(arguments)
        self._store.enter(document, "ACCEPTED")
        self._begin_drive(document["name"])
        return self._told(document, arguments["api"])

    def _never_was(self, arguments: Arguments, error: ApiError) -> None:
        """Whether Google keeps a request that it refused in the operation is not known."""
        document = self._store.find(arguments["target"])
        if document is not None and state_of(document) == "CREATING":
            self._store.delete(document["name"])

    # The way through the states. Each step returns whether there is a next one.

    async def _drive(self, arguments: Arguments, tell: Callable[[str], None]) -> None:
        while True:
            document = self._store.find(arguments["target"])
            step = None if document is None else self._steps.get(state_of(document))
            if document is None or step is None or not await step(document):
                return

    def _broken(self, arguments: Arguments, error: ApiError) -> None:
        document = self._store.find(arguments["target"])
        if error.status != "CANCELLED" and document is not None:
            self._fail(document, error)

    async def _accept(self, document: Document) -> bool:
        due = document["_"]["since"] + self._world.pace.seconds("tpu.queued.accept")
        due = max(due, document["_"].get("after", 0.0))
        await asyncio.sleep(max(0.0, due - time.time()))
        self._store.enter(document, "WAITING_FOR_RESOURCES")
        return True

    async def _wait(self, document: Document) -> bool:
        """For capacity: what is sold out elsewhere fails, here it is waited for."""
        due = document["_"]["since"] + self._world.pace.seconds("tpu.queued.wait")
        until = document["_"].get("until")
        facts = self._facts(document)
        if not document["_"].get("noticed"):
            found = [self._world.faults.take("stockout", **each) for each in facts]
            document["_"]["noticed"] = any(found)
            self._store.save(document)
        while True:
            if until is not None and time.time() >= until:
                return self._fail(document, ApiError("DEADLINE_EXCEEDED", _EXPIRED))
            fault = self._world.faults.take("queue-fail", **facts[0], name=document["name"])
            if fault is not None:
                text = fault.get("text") or "The queued resource failed."
                return self._fail(document, ApiError(fault.get("code") or "INTERNAL", text))
            if time.time() >= due and not any(map(self._is_sold_out, facts)):
                self._store.enter(document, "PROVISIONING")
                return True
            await asyncio.sleep(_POLL)

    def _facts(self, document: Document) -> list[dict[str, str]]:
        """What faults are chosen by, of each of its nodes."""
        _, project, _, zone, _, _ = document["name"].split("/")
        return [
            {"project": project, "zone": zone, "type": node_of(spec).accelerator_type}
            for spec in document["tpu"]["nodeSpec"]
        ]

    def _is_sold_out(self, facts: dict[str, str]) -> bool:
        """Looks without counting: who waits would use up a fault that was meant for others."""
        return any(
            fault.kind == "stockout" and not fault.is_spent() and fault.matches(facts)
            for fault in self._world.faults.all()
        )

    async def _provision(self, document: Document) -> bool:
        names = node_names(document)
        due = document["_"]["since"] + self._world.pace.seconds("tpu.nodes.create")
        try:
            if not document["_"].get("made"):
                await self._make_nodes(document)
            async with asyncio.TaskGroup() as group:
                for name in names:
                    group.create_task(self._boot(name))
        except* ApiError as several:
            first: BaseException = several
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            assert isinstance(first, ApiError)
            await self._remove_nodes(self._own_nodes(document))
            self._fail(document, first)
        if state_of(document) == "FAILED":
            return False
        await asyncio.sleep(max(0.0, due - time.time()))
        with self._world.store.transaction():
            for name in names:
                node = self._nodes.find(name)
                if node is not None and node.state == NodeState.CREATING:
                    node.state = NodeState.READY
                    node.health = Health.HEALTHY
                    self._nodes.save(node)
            duration = document["_"].get("runs")
            if duration is not None:
                document["_"]["ends"] = time.time() + duration
            self._store.enter(document, "ACTIVE")
        return True

    async def _make_nodes(self, document: Document) -> None:
        _, project_id, _, zone, _, _ = document["name"].split("/")
        project = self._world.projects.find(project_id)
        assert project is not None, "projects are never removed"
        for name in node_names(document):
            if self._nodes.find(name) is not None:
                raise already_exists(name)
        planned = []
        for name, spec in zip(node_names(document), document["tpu"]["nodeSpec"], strict=True):
            asked = node_of(spec)
            admitted = self._admission.check(project, zone, asked)
            try:
                endpoints = await self._nodes.reserve(name, admitted.accelerator.workers)
            except MachineError as error:
                raise ApiError("RESOURCE_EXHAUSTED", str(error)) from error
            node = self._admission.build(name, asked, project, admitted, endpoints)
            node.queued_resource = document["name"]
            node.multislice_node = document["_"]["multislice"]
            if is_spot(document, spec) and not is_flex_start(document):
                node.scheduling_config.spot = True
            if "reservationName" in document or document.get("guaranteed", {}).get("reserved"):
                node.scheduling_config.reserved = True
            planned.append((node, spec))
        with self._world.store.transaction():
            for node, spec in planned:
                if self._nodes.find(node.name) is not None:
                    raise already_exists(node.name)
                self._nodes.save(node)
                self._nodes.keep_extras(node.name, spec.get("_extras", {}))
            document["_"]["made"] = True
            self._store.save(document)

    async def _boot(self, name: str) -> None:
        try:
            await self._nodes.make({"target": name}, lambda text: None)
        except ApiError:
            node = self._nodes.find(name)
            if node is not None and node.state == NodeState.CREATING:
                raise  # else somebody deleted it meanwhile

    async def _run(self, document: Document) -> bool:
        """With a run duration, the nodes go when it is over and the request is SUSPENDED:
        docs.cloud.google.com/tpu/docs/request-using-flex-start."""
        ends = document["_"].get("ends")
        if ends is None:
            return False
        await asyncio.sleep(max(0.0, ends - time.time()))
        self._store.enter(document, "SUSPENDING", initiator="SERVICE")
        return True

    async def _suspend(self, document: Document) -> bool:
        due = document["_"]["since"] + self._world.pace.seconds("tpu.nodes.delete")
        names = []
        for name in node_names(document):
            node = self._nodes.find(name)
            if node is not None and node.state != NodeState.PREEMPTED:
                names.append(name)
                node.state = NodeState.DELETING
                self._nodes.save(node)
        await asyncio.gather(*(self._nodes.discard(name) for name in names))
        await asyncio.sleep(max(0.0, due - time.time()))
        with self._world.store.transaction():
            for name in names:
                self._nodes.remove(name)
            initiator = document["state"].get("stateInitiator", "")
            document["_"].pop("ends", None)
            self._store.enter(document, "SUSPENDED", initiator=initiator)
        return False

    def _fail(self, document: Document, error: ApiError) -> bool:
        told = {"code": error.number, "message": error.message}
        document["_"].pop("made", None)
        self._store.enter(document, "FAILED", {"error": told})
        return False

    # Deletion and reset.

    async def _remove_nodes(self, names: list[str]) -> None:
        await asyncio.gather(*(self._nodes.discard(name) for name in names))
        with self._world.store.transaction():
            for name in names:
                self._nodes.remove(name)

    def _own_nodes(self, document: Document) -> list[str]:
        """The nodes that were made for it; another node may have the name of one that was not."""
        return [
            name
            for name in node_names(document)
            if (node := self._nodes.find(name)) and node.queued_resource == document["name"]
        ]

    async def _clear(self, arguments: Arguments, tell: Callable[[str], None]) -> None:
        names = self._own_nodes(self._must(arguments))
        await asyncio.gather(*(self._nodes.discard(name) for name in names))

    def _deleted(self, arguments: Arguments) -> Any:
        document = self._must(arguments)
        for name in self._own_nodes(document):
            self._nodes.remove(name)
        self._store.delete(document["name"])
        # The two versions of the API promise different answers.
        return self._told(document, "v2alpha1") if arguments["api"] == "v2alpha1" else None

    async def _reboot(self, arguments: Arguments, tell: Callable[[str], None]) -> None:
        names = self._own_nodes(self._must(arguments))
        await asyncio.gather(*(self._nodes.reboot(name) for name in names))

    def _shown(self, arguments: Arguments) -> Any:
        return self._told(self._must(arguments), arguments["api"])

    def _must(self, arguments: Arguments) -> Document:
        document = self._store.find(arguments["target"])
        if document is None:
            raise ApiError("NOT_FOUND", f"Resource '{arguments['target']}' was not found")
        return document
