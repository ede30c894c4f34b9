"""The lifecycle of a queued resource from acceptance to its end, across server restarts.

The states are those of cloud_tpu.proto (QueuedResourceState.State) and
docs.cloud.google.com/tpu/docs/queued-resources. The order of writes allows a restarted server to
resume where the last one was killed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from tpuctl.emulator.machines.interface import MachineError
from tpuctl.emulator.state.delays import is_over, remaining
from tpuctl.emulator.state.errors import ApiError
from tpuctl.emulator.state.operations import Arguments, Effect, Record
from tpuctl.emulator.tpu.admission import Admission
from tpuctl.emulator.tpu.nodes import Health, Nodes, NodeState
from tpuctl.emulator.tpu.offerings import already_exists
from tpuctl.emulator.tpu.queued_resource_store import (
    Document,
    QueuedResourceStore,
    is_flex_start,
    is_reserved,
    is_spot,
    node_names,
    node_of,
    state_of,
)
from tpuctl.emulator.wire.registry import Registry

_POLL_SECONDS = 0.1  # interval of capacity checks
# Not a project location: no list contains these operations.
_INTERNAL_PARENT = "queue"
_EXPIRED = "The 'valid until' start timing constraint expired."  # wording of cloud_tpu.proto
_NO_FLEX_START = (
    'FLEX_START provisioning model is not supported for accelerator type "{type}" in location '
    '"{zone}"'
)


class QueuedResourceEngine:
    """Drives queued resources; `render(document, api)` returns the message of an API version."""

    def __init__(
        self,
        registry: Registry,
        nodes: Nodes,
        admission: Admission,
        store: QueuedResourceStore,
        render: Callable[[Document, str], Any],
    ) -> None:
        self._registry = registry
        self._nodes = nodes
        self._admission = admission
        self._store = store
        self._render = render
        self.effects: Mapping[str, Effect] = {
            "tpu.queued.create": Effect(
                self._finish_creation,
                self._check_creation,
                self._fail_creation,
                nodes.operation_metadata,
            ),
            "tpu.queued.drive": Effect(lambda arguments: None, self._drive, self._fail_drive),
            "tpu.queued.delete": Effect(
                self._finish_deletion, self._discard_nodes, None, nodes.operation_metadata
            ),
            "tpu.queued.reset": Effect(
                self._finish_reset, self._reboot, None, nodes.operation_metadata
            ),
        }
        self._steps = {
            "ACCEPTED": self._accept,
            "WAITING_FOR_RESOURCES": self._wait,
            "PROVISIONING": self._provision,
            "ACTIVE": self._run,
            "SUSPENDING": self._suspend,
        }

    def begin(self, verb: str, name: str, api: str) -> Record:
        """Begin a client-visible operation: create, delete or reset.

        Creation finishes when the request is queued or refused: gcloud waits for the operation and
        then for the state (public logs of 2026: the refusal of flex-start came in the operation,
        the wait for capacity after it).
        """
        step = {"delete": "tpu.nodes.delete"}.get(verb, f"tpu.queued.{verb}")
        arguments = {"target": name, "verb": verb, "api": api}
        parent = name.partition("/queuedResources/")[0]
        seconds = self._registry.pace.seconds(step)
        return self._registry.operations.begin(parent, f"tpu.queued.{verb}", arguments, seconds)

    def abort_pending(self, name: str) -> None:
        """Abort all pending operations of a queued resource that is being deleted."""
        for verb in ("create", "drive", "reset"):
            for record in self._registry.operations.pending(f"tpu.queued.{verb}"):
                if record.arguments["target"] == name:
                    self._registry.operations.abort(
                        record.name, ApiError("CANCELLED", "The queued resource is being deleted.")
                    )

    def on_node_removed(self, name: str) -> None:
        """Suspend the queued resource of a removed or preempted node.

        Deleting the nodes suspends the request: Google's samples delete the node first and then the
        request (java-docs-samples#9613). That the preemption of one of several nodes suspends all
        is a guess.
        """
        document = self._store.find(name)
        if document is None or state_of(document) not in ("PROVISIONING", "ACTIVE"):
            return
        nodes = [
            node for node_name in node_names(document) if (node := self._nodes.find(node_name))
        ]
        is_preempted = any(node.state == NodeState.PREEMPTED for node in nodes)
        if nodes and not is_preempted:
            return
        self.abort_pending(name)
        initiator = "SERVICE" if is_preempted else "USER"
        self._store.set_state(document, "SUSPENDING", initiator=initiator)
        self._begin_drive(name)

    def _begin_drive(self, name: str) -> None:
        self._registry.operations.begin(_INTERNAL_PARENT, "tpu.queued.drive", {"target": name}, 0.0)

    def _delay(self, document: Document, step: str) -> tuple[float, float]:
        """When the state began, and when it may end at the earliest."""
        since: float = document["_"]["state_since"]
        return since, since + self._registry.pace.seconds(step)

    def _take_fault(self, kind: str, document: Document) -> Mapping[str, Any] | None:
        attributes = self._fault_attributes(document)[0]
        return self._registry.faults.take(kind, **attributes, name=document["name"])

    # Creation.

    async def _check_creation(self, arguments: Arguments, report: Callable[[str], None]) -> None:
        document = self._require(arguments)
        _, project_id, _, zone, _, _ = document["name"].split("/")
        for spec in document["tpu"]["nodeSpec"]:
            if is_flex_start(document) and not self._admission.offers_flex_start(zone, spec):
                text = _NO_FLEX_START.format(type=node_of(spec).accelerator_type, zone=zone)
                raise ApiError("INVALID_ARGUMENT", text)  # public zone tables of 2026
        if is_reserved(document):
            name = document.get("reservationName", "")
            self._admission.check_reservation(project_id, zone, name)

    def _finish_creation(self, arguments: Arguments) -> Any:
        document = self._require(arguments)
        self._store.set_state(document, "ACCEPTED")
        self._begin_drive(document["name"])
        return self._render(document, arguments["api"])

    def _fail_creation(self, arguments: Arguments, error: ApiError) -> None:
        """Delete a refused request; whether Google keeps it is unknown."""
        document = self._store.find(arguments["target"])
        if document is not None and state_of(document) == "CREATING":
            self._store.delete(document["name"])

    # State machine. Each step returns whether to continue with the next state.

    async def _drive(self, arguments: Arguments, report: Callable[[str], None]) -> None:
        while True:
            document = self._store.find(arguments["target"])
            step = None if document is None else self._steps.get(state_of(document))
            if document is None or step is None or not await step(document):
                return

    def _fail_drive(self, arguments: Arguments, error: ApiError) -> None:
        document = self._store.find(arguments["target"])
        if error.status != "CANCELLED" and document is not None:
            self._fail(document, error)

    async def _accept(self, document: Document) -> bool:
        await asyncio.sleep(remaining(*self._delay(document, "tpu.queued.accept")))
        await asyncio.sleep(max(0.0, document["_"].get("valid_after", 0.0) - time.time()))
        self._store.set_state(document, "WAITING_FOR_RESOURCES")
        return True

    async def _wait(self, document: Document) -> bool:
        """Wait for capacity: a stockout that fails other requests only delays this one."""
        delay = self._delay(document, "tpu.queued.wait")
        valid_until = document["_"].get("valid_until")
        attributes = self._fault_attributes(document)
        if not document["_"].get("stockout_seen"):
            faults = [
                self._registry.faults.take("stockout", **attribute) for attribute in attributes
            ]
            document["_"]["stockout_seen"] = any(faults)
            self._store.save(document)
        while True:
            if valid_until is not None and time.time() >= valid_until:
                return self._fail(document, ApiError("DEADLINE_EXCEEDED", _EXPIRED))
            fault = self._take_fault("queue-failure", document)
            if fault is not None:
                text = fault.get("text") or "The queued resource failed."
                return self._fail(document, ApiError(fault.get("code") or "INTERNAL", text))
            has_room = is_reserved(document) or all(
                self._registry.weather.has_room(attribute, attributes.count(attribute))
                for attribute in attributes
            )
            if is_over(*delay) and has_room and not any(map(self._is_sold_out, attributes)):
                self._store.set_state(document, "PROVISIONING")
                return True
            await asyncio.sleep(_POLL_SECONDS)

    def _fault_attributes(self, document: Document) -> list[dict[str, str]]:
        """The attributes that faults are matched against, for each node."""
        _, project, _, zone, _, _ = document["name"].split("/")
        return [
            {"project": project, "zone": zone, "type": node_of(spec).accelerator_type}
            for spec in document["tpu"]["nodeSpec"]
        ]

    def _is_sold_out(self, attributes: dict[str, str]) -> bool:
        """Check for stockouts without counting a match: waiting must not use up faults."""
        return any(
            fault.kind == "stockout" and not fault.is_exhausted() and fault.matches(attributes)
            for fault in self._registry.faults.all()
        )

    async def _provision(self, document: Document) -> bool:
        names = node_names(document)
        since, due = self._delay(document, "tpu.nodes.create")
        try:
            if not document["_"].get("nodes_created"):
                await self._create_nodes(document)
            await self._hold_in_provisioning(document)
            if self._will_be_suspended(document):
                await asyncio.sleep(max(0.0, due - time.time()))
                self._store.set_state(document, "SUSPENDING", initiator="SERVICE")
                return True
            async with asyncio.TaskGroup() as group:
                for name in names:
                    group.create_task(self._boot(name))
        except* ApiError as errors:
            first: BaseException = errors
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            assert isinstance(first, ApiError)
            await self._remove_nodes(self._created_nodes(document))
            self._fail(document, first)
        if state_of(document) == "FAILED":
            return False
        await asyncio.sleep(remaining(since, due))
        with self._registry.store.transaction():
            for name in names:
                node = self._nodes.find(name)
                if node is not None and node.state == NodeState.CREATING:
                    node.state = NodeState.READY
                    node.health = Health.HEALTHY
                    self._nodes.save(node)
            duration = document["_"].get("max_run_seconds")
            if duration is not None:
                document["_"]["run_end"] = time.time() + duration
            self._store.set_state(document, "ACTIVE")
        return True

    async def _hold_in_provisioning(self, document: Document) -> None:
        """Wait until the fault that holds this request is removed, if there is one."""
        if "stuck_by" not in document["_"]:
            fault = self._take_fault("stuck-provisioning", document)
            document["_"]["stuck_by"] = "" if fault is None else fault["id"]
            self._store.save(document)
        while True:
            if document["_"]["stuck_by"] not in {fault.id for fault in self._registry.faults.all()}:
                return
            await asyncio.sleep(_POLL_SECONDS)

    def _will_be_suspended(self, document: Document) -> bool:
        """Whether a fault says so: it then fails, as large spot slices were seen to do."""
        fault = self._take_fault("provisioning-failure", document)
        if fault is not None:
            document["_"]["failure"] = fault.get("text") or "an internal error has occurred"
            self._store.save(document)
        return "failure" in document["_"]

    async def _create_nodes(self, document: Document) -> None:
        _, project_id, _, zone, _, _ = document["name"].split("/")
        project = self._registry.projects.find(project_id)
        assert project is not None, "projects are never removed"
        for name in node_names(document):
            if self._nodes.find(name) is not None:
                raise already_exists(name)
        planned = []
        for name, spec in zip(node_names(document), document["tpu"]["nodeSpec"], strict=True):
            requested = node_of(spec)
            admitted = self._admission.check(project, zone, requested, spec.get("_extras", {}))
            try:
                endpoints = await self._nodes.reserve(name, admitted.accelerator.workers)
            except MachineError as error:
                raise ApiError("RESOURCE_EXHAUSTED", str(error)) from error
            if document["_"]["multislice"]:
                document["_"].setdefault("coordinator", endpoints[0].address)
            node = self._admission.build(name, requested, project, admitted, endpoints)
            node.queued_resource = document["name"]
            node.multislice_node = document["_"]["multislice"]
            if is_spot(document, spec) and not is_flex_start(document):
                node.scheduling_config.spot = True
            if is_reserved(document):
                node.scheduling_config.reserved = True
            planned.append((node, spec))
        with self._registry.store.transaction():
            for node, spec in planned:
                if self._nodes.find(node.name) is not None:
                    raise already_exists(node.name)
                self._nodes.save(node)
                self._nodes.save_extras(node.name, spec.get("_extras", {}))
            document["_"]["nodes_created"] = True
            self._store.save(document)

    async def _boot(self, name: str) -> None:
        try:
            await self._nodes.create_machines({"target": name}, lambda text: None)
        except ApiError:
            node = self._nodes.find(name)
            if node is not None and node.state == NodeState.CREATING:
                raise  # otherwise it was deleted meanwhile

    async def _run(self, document: Document) -> bool:
        """After the run duration the nodes are deleted and the request is SUSPENDED:
        docs.cloud.google.com/tpu/docs/request-using-flex-start."""
        run_end = document["_"].get("run_end")
        if run_end is None:
            return False
        await asyncio.sleep(max(0.0, run_end - time.time()))
        self._store.set_state(document, "SUSPENDING", initiator="SERVICE")
        return True

    async def _suspend(self, document: Document) -> bool:
        delay = self._delay(document, "tpu.nodes.delete")
        names = []
        for name in node_names(document):
            node = self._nodes.find(name)
            if node is not None and node.state != NodeState.PREEMPTED:
                names.append(name)
                node.state = NodeState.DELETING
                self._nodes.save(node)
        await self._nodes.discard_all(names)
        await asyncio.sleep(remaining(*delay))
        with self._registry.store.transaction():
            for name in names:
                self._nodes.remove(name)
            initiator = document["state"].get("stateInitiator", "")
            document["_"].pop("run_end", None)
            failure = document["_"].pop("failure", None)
            if failure is not None:
                return self._fail(document, ApiError("INTERNAL", failure))
            self._store.set_state(document, "SUSPENDED", initiator=initiator)
        return False

    def _fail(self, document: Document, error: ApiError) -> bool:
        status = {"code": error.number, "message": error.message}
        document["_"].pop("nodes_created", None)
        self._store.set_state(document, "FAILED", {"error": status})
        return False

    # Deletion and reset.

    async def _remove_nodes(self, names: list[str]) -> None:
        await self._nodes.discard_all(names)
        with self._registry.store.transaction():
            for name in names:
                self._nodes.remove(name)

    def _created_nodes(self, document: Document) -> list[str]:
        """The nodes created for it; another node may have the name of a missing one."""
        return [
            name
            for name in node_names(document)
            if (node := self._nodes.find(name)) and node.queued_resource == document["name"]
        ]

    async def _discard_nodes(self, arguments: Arguments, report: Callable[[str], None]) -> None:
        await self._nodes.discard_all(self._created_nodes(self._require(arguments)))

    def _finish_deletion(self, arguments: Arguments) -> Any:
        document = self._require(arguments)
        for name in self._created_nodes(document):
            self._nodes.remove(name)
        self._store.delete(document["name"])
        # The responses differ between API versions.
        return self._render(document, "v2alpha1") if arguments["api"] == "v2alpha1" else None

    async def _reboot(self, arguments: Arguments, report: Callable[[str], None]) -> None:
        names = self._created_nodes(self._require(arguments))
        await asyncio.gather(*(self._nodes.reboot(name) for name in names))

    def _finish_reset(self, arguments: Arguments) -> Any:
        return self._render(self._require(arguments), arguments["api"])

    def _require(self, arguments: Arguments) -> Document:
        document = self._store.find(arguments["target"])
        if document is None:
            raise ApiError("NOT_FOUND", f"Resource '{arguments['target']}' was not found")
        return document
