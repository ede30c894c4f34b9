"""The lifecycle of nodes, whichever API sells them: states, waiting, start and delete."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, ClassVar, Self

from tpuctl.catalog import Capacity
from tpuctl.cloud.clients import Cloud
from tpuctl.cloud.operations import long_operation
from tpuctl.engine.resource import Report
from tpuctl.errors import (
    Conflict,
    NoCapacity,
    OperationFailed,
    Scope,
    TpuctlError,
    Usage,
)
from tpuctl.model.cost.cost import CostLine, node_cost, with_addresses
from tpuctl.model.plan import Change
from tpuctl.model.stack.schema import QueueSection
from tpuctl.model.stack.stack import Stack
from tpuctl.model.status.inventory import InventoryItem
from tpuctl.model.text.duration import DURATION
from tpuctl.model.text.ssh_key_lines import public_key_line
from tpuctl.resources.base import LabeledResource, time_of
from tpuctl.resources.network.network import Network

CREATE_SECONDS = 1800.0
DELETE_SECONDS = 900.0
TRANSITIONAL_STATES = ("PENDING", "CREATING", "STARTING", "RESTARTING", "REPAIRING", "REIMAGING")
DEAD_STATES = ("PREEMPTED", "TERMINATED")


def duration_text(queue: QueueSection, without_deadline: str = "until there is capacity") -> str:
    """The run duration and waiting time in words. Raises Usage if the deadline has passed."""
    until, run_for = queue.valid_until, queue.run_for
    start = f" for {run_for}, waiting" if run_for else ", waiting"
    if until is None:
        return f"{start} {without_deadline}"
    if re.fullmatch(DURATION, until):
        return f"{start} up to {until}"
    deadline_time = datetime.fromisoformat(until).astimezone(UTC)
    if deadline_time <= datetime.now(UTC):
        raise Usage(
            "Deadline has passed",
            f"tpu.queue.valid_until is {until}, which is in the past",
            hint="Set a later time, or a duration:\n    queue: {valid_until: 6h}",
        )
    return f"{start} until {deadline_time:%Y-%m-%d %H:%M} UTC"


class NodeLifecycle(LabeledResource):
    """A node in the stack's zone, identified by its name and owned by its label."""

    group = "TPU"
    is_tpu = True
    is_machine = True
    is_zonal = True
    is_billable = True
    # Charged while READY, idle or not (cloud.google.com/tpu/docs, "Pricing"); not while starting or
    # after the end. Unclear states count as charged.
    uncharged_before_states = ("PENDING", "CREATING")
    uncharged_after_states = ("PREEMPTED", "STOPPED", "TERMINATED", "HIDDEN")
    noun: ClassVar[str] = "node"

    @classmethod
    def cost(cls, item: InventoryItem) -> CostLine:
        line = node_cost(item.detail, item.zone, capacity=item.capacity)
        return with_addresses(line, item.external_addresses, spot=item.is_spot)

    async def observe(self) -> Any | None:
        raise NotImplementedError

    def diff(self, observed: Any | None) -> Change:
        raise NotImplementedError

    async def apply(self, change: Change, report: Report) -> str | None:
        raise NotImplementedError

    def state_of(self, observed: Any) -> str:
        """Its state, in the words of the TPU API."""
        return str(observed.state.name)

    def created_at(self, observed: Any) -> datetime | None:
        """When it was created, or requested."""
        return time_of(observed.create_time)

    def charged_since(self, observed: Any) -> datetime | None:
        """Since when it is charged; None if it is not yet."""
        is_waiting = self.state_of(observed) in self.uncharged_before_states
        return None if is_waiting else self.created_at(observed)

    def difference_error(self, field: str, actual: str, desired: str) -> Conflict:
        """The error for a difference that an update cannot change."""
        return Conflict(
            "Node differs",
            f"{self.noun} {self.name} has {field} {actual}, the stack file says {desired}",
            hint="To recreate it, delete it first:\n    tpuctl down",
        )

    def change_to_ready(self, state: str) -> Change | None:
        """The change that brings a node from this state to READY; None if it is. Raises
        Conflict."""
        if state == "STOPPED":
            return self.update("starting the node, which is STOPPED", ("state",))
        if state in TRANSITIONAL_STATES:
            return self.update(f"waiting for the node, which is {state}", ("readiness",))
        if state != "READY":
            raise Conflict(
                "Node not usable",
                f"{self.noun} {self.name} is {state}",
                hint="Wait until that ends, then retry. To see its state:\n    tpuctl status",
            )
        return None

    @property
    def ready_seconds(self) -> float:
        """How long to wait until it is READY."""
        return CREATE_SECONDS

    def failure_of(self, observed: Any) -> TpuctlError | None:
        """Why it will not become READY; None if it may."""
        state = self.state_of(observed)
        return self.lost_error(f"it became {state}") if state in DEAD_STATES else None

    def lost_error(self, reason: str) -> TpuctlError:
        """The error for a node that was taken away while it was created."""
        error = NoCapacity(
            "Node preempted",
            f"{self.noun} {self.name}: {reason}",
            hint="Retry, add zones to tpu.zones, or set tpu.capacity: on-demand, "
            "then run\n    tpuctl up",
        )
        error.scope = Scope.ZONE
        return error

    def gone_error(self) -> TpuctlError:
        """The error for a node that no longer exists while it was waited for."""
        return OperationFailed(
            "Node not found",
            f"{self.noun} {self.name} was deleted in the meantime",
            hint="It was deleted manually, or reached a limit. Recreate it:\n    tpuctl up",
        )

    async def wait_until_ready(self, report: Report) -> None:
        async def probe() -> bool | None:
            node = await self.observe()
            if node is None:
                raise self.gone_error()
            state = self.state_of(node)
            if state == "READY":
                return True
            failure = self.failure_of(node)
            if failure is not None:
                raise failure
            report(state, None)
            return None

        await self.poll(probe, f"{self.noun} {self.name} becoming READY", self.ready_seconds)


class SshNode(NodeLifecycle):
    """A node whose machines accept logins with the stack's key."""

    has_ssh = True

    @classmethod
    def from_inventory(
        cls, item: InventoryItem, stack: Stack, cloud: Cloud, *, delete_bucket: bool
    ) -> Self:
        return cls(Network(stack, cloud), str, name=item.name)

    def __init__(self, network: Network, public_key: Callable[[], str], *, name: str = "") -> None:
        super().__init__(network.stack, network.cloud)
        self.network = network
        self.public_key = public_key  # called on demand: generating a key is slow
        self._name = name or self.stack.names.node

    @property
    def name(self) -> str:
        return self._name

    @property
    def key_line(self) -> str:
        return public_key_line(self.stack.user, self.public_key())


class TpuApiNode(NodeLifecycle):
    """A node of one of the versions of the TPU API."""

    api = "tpu"
    client_name: ClassVar[str]  # of the API version

    @property
    def parent(self) -> str:
        return f"projects/{self.stack.project}/locations/{self.stack.zone}"

    @property
    def path(self) -> str:
        return f"{self.parent}/nodes/{self.name}"

    async def observe(self) -> Any | None:
        return await self.find(self.client_name, "get_node", {"name": self.path})

    async def wait_for(self, operation: Any, seconds: float) -> None:
        """Wait for an operation returned by a client method."""
        await long_operation(
            self.cloud, self.client_name, operation.operation, subject=self.address, seconds=seconds
        )

    async def start(self, report: Report) -> None:
        """Start a stopped node, or wait for one that is already starting."""
        report("STARTING", None)
        try:
            operation = await self.call(self.client_name, "start_node", {"name": self.path})
        except (Usage, Conflict):
            node = await self.observe()
            if node is None or node.state.name not in ("READY", *TRANSITIONAL_STATES):
                raise
        else:
            await self.wait_for(operation, CREATE_SECONDS)
        await self.wait_until_ready(report)

    async def remove(self, report: Report) -> None:
        """Delete the node, if it exists; wait if it is already being deleted."""
        report("DELETING", None)
        try:
            operation = await self.find(self.client_name, "delete_node", {"name": self.path})
        except (Usage, Conflict):
            node = await self.observe()
            if node is not None and node.state.name != "DELETING":
                raise
            if node is not None:  # by another program, or by our own call whose response was lost
                await self.wait_until_deleted(node)
            return
        if operation is None:
            return
        deletion = self.wait_for(operation, DELETE_SECONDS)
        await self.confirm_deletion(
            deletion, self.observe, f"{self.noun} {self.name}", DELETE_SECONDS
        )

    async def wait_until_deleted(self, original: Any) -> None:
        """Wait until this node is deleted; another one of its name may exist then."""
        await self.wait_until_gone(
            self.observe, f"{self.noun} {self.name}", DELETE_SECONDS, original=original
        )


def capacity_of(scheduling: Any) -> Capacity:
    """The requested capacity of a node. API v1 has no spot nodes."""
    if getattr(scheduling, "spot", False):
        return "spot"
    if scheduling.preemptible:
        return "preemptible"
    return "reserved" if scheduling.reserved else "on-demand"
