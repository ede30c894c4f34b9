"""What nodes of both versions of the TPU API go through: their states, and the waiting for them."""

from __future__ import annotations

from typing import Any, ClassVar

from tpuctl.catalog import Capacity
from tpuctl.cloud.classification import ApiDisabled
from tpuctl.cloud.operations import long_operation
from tpuctl.engine.resource import Report
from tpuctl.errors import Conflict, NoCapacity, NotFound, OperationFailed, Scope, Usage
from tpuctl.model.cost import CostLine, node_cost, with_addresses
from tpuctl.model.inventory import InventoryItem
from tpuctl.model.names import STACK_LABEL
from tpuctl.model.plan import Change
from tpuctl.polling import Backoff, wait_until
from tpuctl.resources.base import StackResource, name_taken, until_gone

__all__ = [
    "BEYOND_USE",
    "CREATE_SECONDS",
    "DELETE_SECONDS",
    "ON_ITS_WAY",
    "NodeLife",
    "capacity_of",
]

CREATE_SECONDS = 1800.0
DELETE_SECONDS = 900.0
ON_ITS_WAY = ("CREATING", "STARTING", "RESTARTING", "REPAIRING", "REIMAGING")
BEYOND_USE = ("PREEMPTED", "TERMINATED")
POLL = Backoff(initial=0.1, maximum=5.0, multiplier=1.15)  # late by at most 15 % of what was waited


class NodeLife(StackResource):
    """A node in the stack's zone, found by its name and owned by its label."""

    group = "TPU"
    is_tpu = True
    is_machine = True
    is_zonal = True
    is_billable = True
    # Charged while READY, idle or not (cloud.google.com/tpu/docs, "Pricing"); states on the way
    # there and after the end are not. What is unclear counts as charged.
    uncharged_before_states = ("CREATING",)
    uncharged_after_states = ("PREEMPTED", "STOPPED", "TERMINATED", "HIDDEN")
    api: ClassVar[str]  # the client of the version that the node is made with
    noun: ClassVar[str] = "node"

    @classmethod
    def cost(cls, found: InventoryItem) -> CostLine:
        line = node_cost(found.detail, found.zone, capacity=found.capacity)
        return with_addresses(line, found.external_addresses, spot=found.is_spot)

    @property
    def parent(self) -> str:
        return f"projects/{self.stack.project}/locations/{self.stack.zone}"

    @property
    def path(self) -> str:
        return f"{self.parent}/nodes/{self.name}"

    async def observe(self) -> Any | None:
        client = self.cloud.client(self.api)
        try:
            return await self.cloud.call(self.address, client.get_node, {"name": self.path})
        except (NotFound, ApiDisabled):
            return None

    def is_ours(self, observed: Any) -> bool:
        return bool(observed.labels.get(STACK_LABEL) == self.stack.name)

    def check(self, observed: Any) -> None:
        """Refuse a node that carries no label of ours."""
        if not self.is_ours(observed):
            raise name_taken(self, observed.labels.get(STACK_LABEL))

    def differs(self, what: str, have: str, want: str) -> Conflict:
        """The refusal to change what no update can change."""
        return Conflict(
            "Node differs",
            f"{self.noun} {self.name} has {what} {have}, the stack file says {want}",
            hint="Take it down first, then bring it up anew:\n    tpuctl down",
        )

    def until_usable(self, state: str) -> Change | None:
        """What brings a node in this state to READY; None where it is. Raises Conflict."""
        if state == "STOPPED":
            return self.update("the node is STOPPED and is started", ("state",))
        if state in ON_ITS_WAY:
            return self.update(f"the node is {state}: waiting for it", ("wait",))
        if state != "READY":
            raise Conflict(
                "Node not usable",
                f"{self.noun} {self.name} is {state}",
                hint="Wait until that has ended, then bring it up again. See how it is with\n"
                "    tpuctl status",
            )
        return None

    async def until_done(self, operation: Any, seconds: float) -> None:
        """Wait for an operation as the client's methods return it."""
        await long_operation(
            self.cloud, self.api, operation.operation, subject=self.address, seconds=seconds
        )

    async def until_ready(self, report: Report) -> None:
        async def probe() -> bool | None:
            found = await self.observe()
            if found is None:
                raise OperationFailed(
                    "Node vanished",
                    f"{self.noun} {self.name} is gone",
                    hint="Somebody deleted it, or a limit was reached. Make it anew:\n"
                    "    tpuctl up",
                )
            state = found.state.name
            if state == "READY":
                return True
            if state in BEYOND_USE:
                error = NoCapacity(
                    "Node preempted",
                    f"{self.noun} {self.name} became {state}",
                    hint=(
                        "Try again, name more zones in tpu.zones, or take "
                        "tpu.capacity: on-demand, then\n"
                        "    tpuctl up"
                    ),
                )
                error.scope = Scope.ZONE
                raise error
            report(state, None)
            return None

        await wait_until(
            probe,
            description=f"{self.noun} {self.name} becoming READY",
            seconds=CREATE_SECONDS,
            backoff=POLL,
            clock=self.cloud.clock,
        )

    async def start(self, report: Report) -> None:
        """Start a stopped node, or wait for one that somebody else has started."""
        report("STARTING", None)
        client = self.cloud.client(self.api)
        try:
            operation = await self.cloud.call(self.address, client.start_node, {"name": self.path})
        except (Usage, Conflict):
            found = await self.observe()
            if found is None or found.state.name not in ("READY", *ON_ITS_WAY):
                raise
        else:
            await self.until_done(operation, CREATE_SECONDS)
        await self.until_ready(report)

    async def remove(self, report: Report) -> None:
        """Delete the node; one that is gone, or being deleted by somebody else, is fine."""
        report("DELETING", None)
        client = self.cloud.client(self.api)
        try:
            operation = await self.cloud.call(self.address, client.delete_node, {"name": self.path})
        except NotFound:
            return
        except (Usage, Conflict):
            found = await self.observe()
            if found is not None and found.state.name != "DELETING":
                raise
            if found is not None:  # somebody else, or our own call whose answer was lost
                await self.until_gone(found)
            return
        await self.until_done(operation, DELETE_SECONDS)

    async def until_gone(self, seen: Any) -> None:
        """Wait until this one is: another of its name may have been made meanwhile."""
        await until_gone(
            self.observe,
            seen,
            what=f"{self.noun} {self.name}",
            seconds=DELETE_SECONDS,
            backoff=POLL,
            clock=self.cloud.clock,
        )


def capacity_of(scheduling: Any) -> Capacity:
    """How a node was asked for. API v1 knows no spot nodes."""
    if getattr(scheduling, "spot", False):
        return "spot"
    if scheduling.preemptible:
        return "preemptible"
    return "reserved" if scheduling.reserved else "on-demand"
