"""Queued resources: requests for nodes that wait until there is capacity for all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar, Self

from tpuctl.catalog import Capacity
from tpuctl.cloud.clients import Cloud
from tpuctl.cloud.errors import from_status
from tpuctl.cloud.operations import long_operation
from tpuctl.engine.resource import Report
from tpuctl.errors import (
    Conflict,
    Denied,
    NoCapacity,
    NotFound,
    OperationFailed,
    Scope,
    TpuctlError,
    Transient,
    Unreachable,
    Usage,
)
from tpuctl.model.plan import Action, Change
from tpuctl.model.stack.stack import Stack
from tpuctl.model.status.inventory import InventoryItem
from tpuctl.model.text.duration import seconds_of
from tpuctl.model.text.names import STACK_LABEL
from tpuctl.polling import Backoff, gather_all
from tpuctl.resources.base import (
    STACK_UPDATE,
    Query,
    StackResource,
    min_time,
    name_taken,
    time_of,
)
from tpuctl.resources.machines.instance_metadata import prerequisites
from tpuctl.resources.network.network import Network
from tpuctl.resources.tpu.node_lifecycle import duration_text
from tpuctl.resources.tpu.queued_resource_spec import (
    CreateQueuedResource,
    deadline,
    owner,
    queueing_policy,
    request_body,
    request_differences,
    waited_seconds,
    waiting_text,
)
from tpuctl.resources.tpu.race import Race, RaceEntry
from tpuctl.resources.tpu.tpu_node import TpuNode
from tpuctl.resources.tpu.tpu_node_spec import (
    boot_key_differences,
    boot_key_of,
    disk_addresses,
    runtime_reason,
)

WAITING_STATES = ("CREATING", "ACCEPTED", "PROVISIONING", "WAITING_FOR_RESOURCES")
DEAD_STATES = ("FAILED", "SUSPENDING", "SUSPENDED")
NODELESS_STATES = ("FAILED", "SUSPENDED")  # without nodes: can be deleted without force
MAX_WAIT_SECONDS = 30 * 86400.0  # for a request without valid_until
ACCEPT_SECONDS = 900.0
DELETE_SECONDS = 900.0
POLL = Backoff(initial=0.1, maximum=10.0, multiplier=1.15)
MAX_SILENCE_SECONDS = 1800.0  # without a response from the cloud, while waiting
DEADLINE_EXCEEDED, INTERNAL = 4, 13  # in google.rpc.Code
# The text of large spot slices that Google gives up on, minutes after PROVISIONING.
INTERNAL_ERROR = "an internal error has occurred"


@dataclass(frozen=True)
class Request:
    """The existing queued resource, and the existing nodes by name, whether they belong to it or
    not."""

    queued: Any | None
    nodes: dict[str, Any] = field(default_factory=dict)
    boot_key: str | None = None  # of its nodes, if the stack has a key; empty: Google's

    @property
    def state(self) -> str:
        return "" if self.queued is None else str(self.queued.state.state.name)


class QueuedNodes(StackResource):
    """All nodes of the stack in one request, which outlives this program and is deleted with
    them."""

    kind = "queued"
    group = "TPU"
    label = "queued resources, and their TPU VMs"
    display_name = "request"
    is_tpu = True
    api = "tpu"
    is_machine = True
    has_ssh = True
    is_zonal = True
    is_billable = True
    permissions = """
        read tpu.viewer tpu.nodes.get tpu.nodes.list
        create tpu.admin tpu.nodes.create tpu.nodes.delete tpu.operations.get
        create compute.viewer compute.addresses.list compute.disks.list compute.instances.list
        create compute.viewer compute.routers.list
        create iam.serviceAccountAdmin iam.serviceAccounts.list
        create iam.serviceAccountUser iam.serviceAccounts.actAs
        update:labels,tags,ssh-keys,limits,metadata tpu.admin tpu.nodes.update tpu.operations.get
        update:state tpu.admin tpu.nodes.start tpu.operations.get
    """
    optional: ClassVar = {"update": STACK_UPDATE}

    @classmethod
    def applies(cls, stack: Stack) -> bool:
        return stack.queue is not None and not stack.is_node

    @classmethod
    def from_inventory(
        cls, item: InventoryItem, stack: Stack, cloud: Cloud, *, delete_bucket: bool
    ) -> Self:
        return cls(Network(stack, cloud), str)

    @classmethod
    def list_all(cls, query: Query) -> Iterator[InventoryItem]:
        client = query.cloud.client("tpu")
        requests = client.list_queued_resources(query.all_locations, **query.options)
        for queued in query.items(requests, "queued_resources"):
            specs = list(queued.tpu.node_spec)
            if specs:
                parts = queued.name.split("/")
                yield InventoryItem(
                    cls,
                    parts[-1],
                    specs[0].node.labels.get(STACK_LABEL, ""),
                    parts[3],
                    queued.state.state.name,
                    specs[0].node.accelerator_type,
                    time_of(queued.create_time),
                    capacity=_capacity(queued),
                    count=sum(spec.multislice_params.node_count or 1 for spec in specs),
                )

    @classmethod
    def cost(cls, item: InventoryItem) -> None:
        """Nothing by itself: its nodes are charged."""

    def __init__(self, network: Network, public_key: Callable[[], str]) -> None:
        super().__init__(network.stack, network.cloud)
        self.network = network
        self.waited_seconds: float | None = None  # since the request was created
        self.nodes = [TpuNode(network, public_key, name=name) for name in self.stack.nodes]

    @property
    def name(self) -> str:
        return self.stack.names.queued

    @property
    def path(self) -> str:
        place = f"projects/{self.stack.project}/locations/{self.stack.zone}"
        return f"{place}/queuedResources/{self.name}"

    @property
    def after(self) -> frozenset[str]:
        needed = {self.network.address, *disk_addresses(self.stack)}
        return frozenset(needed | prerequisites(self.stack))

    async def observe(self) -> Request | None:
        queued = await self._get()  # before the nodes, which are created and deleted with it
        observed = await gather_all([node.observe() for node in self.nodes])
        names = [node.name for node in self.nodes]
        nodes = {name: node for name, node in zip(names, observed, strict=True) if node is not None}
        if nodes and queued is None:  # another program may have created it in the meantime
            queued = await self._get()
        if queued is None:
            return Request(None, nodes) if nodes else None
        return Request(queued, nodes, await self._boot_key())

    async def _get(self) -> Any | None:
        return await self.find("tpu", "get_queued_resource", {"name": self.path})

    async def _boot_key(self) -> str | None:
        """As in `Request`; the client leaves it out."""
        if self.stack.crypto_key is None:
            return None
        read = self.cloud.client("rest").call
        with suppress(NotFound):  # deleted in the meantime
            queued = await self.cloud.call(self.address, read, "GET", "tpu", f"/v2/{self.path}")
            for spec in queued.get("tpu", {}).get("nodeSpec", ()):
                return boot_key_of(spec.get("node", {}))
        return None

    def diff(self, observed: Request | None) -> Change:
        nodes = self.stack.counted_type
        if observed is None:
            because = f"requesting {nodes} in {self.stack.zone}{self._duration_text()}"
            return self.create(because + runtime_reason(self.stack))
        if observed.queued is None:
            raise self._unqueued_nodes_error(observed.nodes)
        self._check(observed.queued)
        if observed.state in ("DELETING", *DEAD_STATES):
            self._duration_text()
        if observed.state == "DELETING":
            return self.create("recreating the request, which is being deleted")
        if observed.state in DEAD_STATES:
            return self.create(f"{self._recreating}, which is {observed.state}")
        self._compare(observed)
        if observed.state in WAITING_STATES:
            return self.update(f"still waiting: {waiting_text(observed.queued)}", ("readiness",))
        missing = [node.name for node in self.nodes if node.name not in observed.nodes]
        if missing:
            return self.create(f"{self._recreating}: {', '.join(missing)} no longer exists")
        changes = [node.diff(observed.nodes[node.name]) for node in self.nodes]
        preempted = [
            node.name
            for node, change in zip(self.nodes, changes, strict=True)
            if change.action is Action.CREATE
        ]
        if preempted:
            return self.create(f"{self._recreating}: {', '.join(preempted)} was preempted")
        fields = sorted({name for change in changes if change.is_work for name in change.fields})
        if fields:
            because = next(change.because for change in changes if change.is_work)
            return self.update(because, fields)
        return self.nothing(f"{observed.state} with {nodes}")

    @property
    def _recreating(self) -> str:
        """The API creates all nodes of a request, and none of them alone."""
        count = len(self.nodes)
        return "recreating the request" + (f" with its {count} nodes" if count > 1 else "")

    def _duration_text(self) -> str:
        assert self.stack.queue is not None
        return duration_text(self.stack.queue)

    def is_ours(self, observed: Request) -> bool:
        return observed.queued is not None and owner(observed.queued) == self.stack.name

    def removal(self, observed: Request | None) -> Change:
        if observed is None or observed.queued is None:
            return super().removal(None)
        if not self.is_ours(observed):
            return super().removal(observed)
        return self.delete(f"the request is {observed.state}; its nodes are deleted with it")

    async def apply(self, change: Change, report: Report) -> str | None:
        if change.action is Action.DELETE:
            await self._delete(report)
            return None
        observed = await self.observe()
        change_now = self.diff(observed)  # it may have changed meanwhile
        if change_now.action is Action.CREATE:
            if observed is not None and observed.queued is not None:
                await self._delete(report, observed.queued)
            await self._create(report)
        elif "readiness" in change_now.fields:
            await self._wait_until_active(report)
        elif change_now.is_work:
            await self._update_nodes(report)
        return None

    async def _update_nodes(self, report: Report) -> None:
        async def update(node: TpuNode) -> None:
            change = node.diff(await node.observe())
            if change.action is Action.CREATE:  # only the request can recreate it
                raise self._lost_error(f"node {node.address} no longer exists")
            if change.is_work:
                await node.apply(change, report)

        await gather_all(update(node) for node in self.nodes)

    async def _create(self, report: Report) -> None:
        node = await self.nodes[0].body()
        ask = CreateQueuedResource(self.stack, self.cloud, request_body(self.stack, node))
        report("requesting the nodes", None)

        async def create() -> None:
            operation = await self.retry_until_visible(ask, report)
            await long_operation(
                self.cloud, "tpu", operation, subject=self.address, seconds=ACCEPT_SECONDS
            )

        try:
            existing = await self.create_or_adopt(create, self.observe, report)
            if existing is not None and self.diff(existing).action is Action.CREATE:
                raise Conflict(
                    "Queued resource not usable",
                    f"{self.address}, created by another program, is {existing.state}",
                    hint="Request it again:\n    tpuctl up",
                )
        except (Conflict, Unreachable):
            raise  # not ours to delete, or the cloud is unreachable
        except TpuctlError:
            await self._delete_if_failed(report)
            raise
        await self._wait_until_active(report)

    async def _wait_until_active(self, report: Report) -> None:
        last_response = self.cloud.clock.now()
        provisioning_since: float | None = None

        async def probe() -> bool | None:
            nonlocal last_response, provisioning_since
            try:
                queued = await self._get()
            except Transient:  # in hours of waiting, the network may fail for minutes
                if self.cloud.clock.now() - last_response > MAX_SILENCE_SECONDS:
                    raise
                report("the cloud does not respond; the request is still queued", None)
                return None
            last_response = self.cloud.clock.now()
            if queued is None:
                raise NotFound(
                    "Queued resource not found",
                    f"queued resource {self.name} in {self.stack.zone} was deleted in the meantime",
                    hint="Request it again:\n    tpuctl up",
                )
            self.waited_seconds = waited_seconds(queued, self.cloud.server_clock.now())
            state = queued.state.state.name
            if state == "ACTIVE":
                return True
            if state in DEAD_STATES:
                raise self._failure(queued)
            if state != "PROVISIONING":
                provisioning_since = None
            elif provisioning_since is None:
                provisioning_since = last_response
            elif last_response - provisioning_since >= self._provisioning_seconds:
                await self._delete(report, queued)
                raise self._stuck_error()
            report(waiting_text(queued, self.cloud.server_clock.now()), None)
            return None

        try:
            description = f"queued resource {self.name} becoming ACTIVE"
            await self.poll(probe, description, MAX_WAIT_SECONDS, POLL)
        except Unreachable:
            raise
        except TpuctlError:
            await self._delete_if_failed(report)
            raise
        await self._when_active(report)

    async def _when_active(self, report: Report) -> None:
        await self._update_nodes(report)

    @property
    def _provisioning_seconds(self) -> float:
        """How long the request may stay in PROVISIONING, from when this program first sees it:
        the API does not report when a state began."""
        assert self.stack.queue is not None
        timeout = self.stack.queue.provisioning_timeout
        return math.inf if timeout is None else seconds_of(timeout)

    def _stuck_error(self) -> TpuctlError:
        assert self.stack.queue is not None
        error = NoCapacity(
            "Request stuck in PROVISIONING",
            f"{self.address}: {self.stack.zone} did not create the nodes within "
            f"{self.stack.queue.provisioning_timeout} (tpu.queue.provisioning_timeout); "
            "the request was deleted",
            hint="Request it again, add zones to tpu.zones, or wait longer:\n"
            "    tpu: {queue: {provisioning_timeout: 3h}}",
        )
        error.scope = Scope.ZONE
        return error

    async def _delete_if_failed(self, report: Report) -> None:
        """Delete a failed request, which would keep using quota."""
        with suppress(TpuctlError):
            queued = await self._get()
            is_over = queued is not None and queued.state.state.name in DEAD_STATES
            if is_over and owner(queued) == self.stack.name:
                await self._delete(report, queued)

    def _failure(self, queued: Any) -> TpuctlError:
        """The error for a request that failed or was suspended."""
        state = queued.state.state.name
        if state != "FAILED" and queued.state.state_initiator.name == "SERVICE":
            return self._provisioning_error(f"Google suspended it: it is {state}")
        if state != "FAILED":
            return self._lost_error(f"it is {state}")
        status, until = queued.state.failed_data.error, deadline(queued)
        error = from_status(
            status,
            self.address,
            {
                "project": self.stack.project,
                "zone": self.stack.zone,
                "type": self.stack.accelerator.name,
            },
        )
        is_unknown = isinstance(error, OperationFailed)
        if until is not None and (
            status.code == DEADLINE_EXCEEDED
            or (is_unknown and self.cloud.server_clock.now() >= until)
        ):
            return self._expired_error(queued, until)
        if is_unknown and status.code == INTERNAL and INTERNAL_ERROR in status.message.lower():
            return self._provisioning_error(f"error 13, {status.message}")
        if is_unknown:  # the request may succeed in another zone
            error.scope = Scope.ZONE
        return error

    def _expired_error(self, queued: Any, until: datetime) -> TpuctlError:
        error = NoCapacity(
            "No capacity before valid_until",
            f"{self.address}: {self.stack.zone} had no capacity until "
            f"{until.astimezone(UTC):%Y-%m-%d %H:%M} UTC ({self._deadline_key})",
            hint="Wait longer, or without a deadline by omitting valid_until:\n    tpu: "
            "{queue: true}\n"
            "or add zones to tpu.zones, or use spot capacity, then run\n"
            "    tpuctl up",
        )
        # By the stack: Google shows a duration as the moment when it ends.
        requested = queueing_policy(self.stack)
        was_moment = "valid_until_time" in requested
        error.scope = Scope.PROJECT if was_moment else Scope.ZONE  # expired everywhere
        return error

    @property
    def _deadline_key(self) -> str:
        """What sets the deadline of the request."""
        queue, until = self.stack.queue, self.stack.file.tpu.deadline
        is_of_all = until is not None and queue is not None and until == queue.valid_until
        return "tpu.deadline" if is_of_all else "tpu.queue.valid_until"

    def _provisioning_error(self, reason: str) -> TpuctlError:
        """The usual end of a large spot slice for which there is no capacity."""
        error = NoCapacity(
            "Nodes could not be provisioned",
            f"{self.address} in {self.stack.zone}: {reason}",
            hint="Most often the zone has too little capacity for a slice of this size. Request it "
            "again, add zones to tpu.zones, or use a smaller type:\n    tpuctl up",
        )
        error.scope = Scope.ZONE
        return error

    def _lost_error(self, reason: str) -> TpuctlError:
        error = NoCapacity(
            "Preempted during creation",
            f"{self.address} in {self.stack.zone}: {reason}",
            hint="Request it again:\n    tpuctl up",
        )
        error.scope = Scope.ZONE
        return error

    async def _delete(self, report: Report, original: Any = None) -> None:
        """Delete the request with its nodes; given `original`, only that one. If it cannot be read,
        it is deleted in any state."""
        report("DELETING", None)
        if original is None:
            with suppress(Denied, Unreachable):
                original = await self._get()
                if original is None:
                    return
        is_nodeless = original is not None and original.state.state.name in NODELESS_STATES
        request = {"name": self.path, "force": not is_nodeless}
        try:
            operation = await self.call("tpu", "delete_queued_resource", request)
        except NotFound:
            return
        except (Usage, Conflict):
            current = await self._get()
            if (
                current is not None
                and (original is None or current.create_time == original.create_time)
                and current.state.state.name != "DELETING"
            ):
                raise
        else:
            deletion = long_operation(
                self.cloud, "tpu", operation.operation, subject=self.address, seconds=DELETE_SECONDS
            )
            await self.confirm_deletion(
                deletion, self._get, f"queued resource {self.name}", DELETE_SECONDS
            )
        if original is not None:
            await self._wait_until_deleted(original)

    async def _wait_until_deleted(self, original: Any) -> None:
        await self.wait_until_gone(
            self._get,
            f"queued resource {self.name}",
            DELETE_SECONDS,
            original=original,
            backoff=POLL,
        )

    def _check(self, queued: Any) -> None:
        stack_name = owner(queued)
        if stack_name != self.stack.name:
            raise name_taken(self, stack_name)

    def _compare(self, observed: Request) -> None:
        """Reject a request that differs from the stack file."""
        differences = (
            *request_differences(self.stack, observed.queued),
            *boot_key_differences(self.stack, observed.boot_key),
        )
        for field_name, actual, desired in differences:
            raise Conflict(
                "Queued resource differs",
                f"queued resource {self.name} has {field_name} {actual}, the stack file says "
                f"{desired}",
                hint="To recreate it, delete it first:\n    tpuctl down",
            )

    def _unqueued_nodes_error(self, nodes: dict[str, Any]) -> Conflict:
        """Nodes without the request: created directly, or left over from another request."""
        for node in self.nodes:
            if node.name in nodes:
                node.check(nodes[node.name])
        return Conflict(
            "Node created without a queue",
            f"{', '.join(sorted(nodes))} in {self.stack.zone} does not belong to queued resource "
            f"{self.name}",
            hint="To recreate it, delete it first:\n    tpuctl down\n"
            "Or keep it:\n    tpu: {queue: false}",
        )


class RacedRequest(RaceEntry, QueuedNodes):
    """A queued resource; it wins when it is ACTIVE."""

    def __init__(self, network: Network, public_key: Callable[[], str], race: Race) -> None:
        QueuedNodes.__init__(self, network, public_key)
        self.race = race
        race.entries.append(self)

    @property
    def address(self) -> str:
        return f"{self.kind}/{self.stack.zone}/{self.name}"

    def diff(self, observed: Request | None) -> Change:
        change = super().diff(observed)
        if change.action is Action.CREATE:
            return change
        return self.update(change.because, ("readiness",))  # also if it is ACTIVE, to win

    async def enter(self, change: Change, report: Report) -> str | None:
        return await QueuedNodes.apply(self, change, report)

    async def _when_active(self, report: Report) -> None:
        if await self.claim():
            await super()._when_active(report)

    async def granted(self) -> datetime | None:
        queued = await self._get()
        is_active = queued is not None and queued.state.state.name == "ACTIVE"
        return time_of(queued.create_time) if queued is not None and is_active else None

    async def charged_since(self) -> datetime | None:
        nodes = await gather_all(node.observe() for node in self.nodes)
        return min_time(time_of(node.create_time) for node in nodes if node is not None)

    async def clear(self, report: Report) -> None:
        queued = await self._get()
        if queued is not None and owner(queued) == self.stack.name:
            await self._delete(report, queued)


def _capacity(queued: Any) -> Capacity:
    if "spot" in queued:
        return "spot"
    return "reserved" if queued.reservation_name else "on-demand"
