"""A slice of several hosts that Compute Engine sells: a managed instance group of TPU machines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from tpuctl.cloud.operations import compute_error
from tpuctl.engine.resource import Report
from tpuctl.errors import (
    Conflict,
    NoCapacity,
    QuotaExceeded,
    Scope,
    TpuctlError,
    Unreachable,
    Usage,
)
from tpuctl.model.plan import Action, Change
from tpuctl.model.stack.stack import Stack
from tpuctl.model.status.inventory import InventoryItem, stack_of_description
from tpuctl.model.text.duration import DURATION, seconds_of
from tpuctl.model.text.names import STACK_LABEL
from tpuctl.polling import gather_all
from tpuctl.resources.base import (
    STACK_UPDATE,
    Query,
    min_time,
    name_taken,
    time_of,
)
from tpuctl.resources.machines.compute_instance import ComputeInstance, metadata_values
from tpuctl.resources.tpu.node_lifecycle import (
    DELETE_SECONDS,
    TRANSITIONAL_STATES,
    duration_text,
)
from tpuctl.resources.tpu.tpu_group_parts import GroupTemplate, WorkloadPolicy, get_group
from tpuctl.resources.tpu.tpu_instance import MachineNode, update_machine
from tpuctl.resources.tpu.tpu_machine_spec import (
    capacity_of,
    external_addresses,
    group_of,
    in_worker_order,
    machine_differences,
    machine_state,
    owning_group,
    slice_status,
)
from tpuctl.resources.tpu.tpu_node_spec import stale_because, stale_fields

MAX_WAIT_SECONDS = 30 * 86400.0  # for flex-start without valid_until
CREATING_ACTIONS = ("creating", "creating_without_retries", "recreating", "restarting", "verifying")


@dataclass(frozen=True)
class Group:
    """An existing group."""

    manager: Any
    managed: tuple[Any, ...] = ()  # an entry for each machine that it should have
    machines: tuple[Any, ...] = ()  # the instances that exist, in worker order


class TpuGroup(MachineNode):
    """All machines of a slice, or none: what is created in part is deleted again."""

    kind = "group"
    label = "managed instance groups of TPUs"
    display_name = "node"
    permissions = """
        read compute.viewer compute.instanceGroupManagers.get compute.instanceGroupManagers.list
        read compute.viewer compute.instances.list
        create compute.viewer compute.addresses.list compute.disks.list compute.routers.list
        create compute.instanceAdmin.v1 compute.instanceGroupManagers.create
        create compute.instanceAdmin.v1 compute.instanceGroupManagers.delete
        create compute.instanceAdmin.v1 compute.instanceGroups.delete
        create compute.instanceAdmin.v1 compute.instanceTemplates.useReadOnly
        create compute.instanceAdmin.v1 compute.resourcePolicies.use
        create compute.instanceAdmin.v1 compute.instances.create compute.disks.create
        create compute.instanceAdmin.v1 compute.instances.setMetadata
        create compute.instanceAdmin.v1 compute.subnetworks.use compute.zoneOperations.get
        create iam.serviceAccountUser iam.serviceAccounts.actAs
        update:labels compute.instanceAdmin.v1 compute.instances.setLabels
        update:tags compute.instanceAdmin.v1 compute.instances.setTags
        update:ssh-keys,limits,metadata compute.instanceAdmin.v1 compute.instances.setMetadata
        update:labels,tags,ssh-keys,limits,metadata compute.viewer compute.instances.get
        update:labels,tags,ssh-keys,limits,metadata compute.viewer compute.zoneOperations.get
        update:ssh-keys,limits,metadata iam.serviceAccountUser iam.serviceAccounts.actAs
    """
    optional: ClassVar = {"update": STACK_UPDATE}

    @classmethod
    def applies(cls, stack: Stack) -> bool:
        return stack.is_compute and stack.machine.hosts > 1

    @classmethod
    def list_all(cls, query: Query) -> Iterator[InventoryItem]:
        managers = query.described("instanceGroupManagers")
        if not managers:
            return
        instances = query.aggregated("instances")
        for zone, manager in managers:
            owner, name = stack_of_description(manager["description"]), manager["name"]
            if owner is None:
                continue
            machines = in_worker_order(
                machine
                for place, machine in instances
                if (place, owning_group(machine)) == (zone, name)
            )
            actions = {_snake_case(key): n for key, n in manager.get("currentActions", {}).items()}
            statuses = [machine.get("status", "") for machine in machines]
            state = _state(manager.get("targetSize", 0), actions, statuses)
            status = slice_status(name, manager["id"], zone, state, machines)
            yield InventoryItem(
                cls,
                name,
                owner,
                zone,
                state,
                status.accelerator_type,
                time_of(manager.get("creationTimestamp")),
                capacity=capacity_of(machines[0]) if machines else "on-demand",
                external_addresses=sum(len(external_addresses(machine)) for machine in machines),
                node=status,
            )

    @property
    def after(self) -> frozenset[str]:
        needed = {f"{part.kind}/{self.name}" for part in (GroupTemplate, WorkloadPolicy)}
        return super().after | needed

    @property
    def where(self) -> dict[str, Any]:
        stack = self.stack
        return {
            "project": stack.project,
            "zone": stack.zone,
            "instance_group_manager": self.name,
        }

    async def observe(self) -> Group | None:
        manager = await get_group(self, self.name)
        if manager is None:
            return None
        managed, machines = await gather_all([self._managed(), self._machines()])
        return Group(manager, managed, machines)

    async def _managed(self) -> tuple[Any, ...]:
        return tuple(
            await self.find("instance_group_managers", "list_managed_instances", request=self.where)
            or ()
        )

    async def _machines(self) -> tuple[Any, ...]:
        request = {
            "project": self.stack.project,
            "zone": self.stack.zone,
            "filter": f"labels.{STACK_LABEL}={self.stack.name}",
        }
        pager = await self.call("instances", "list", request=request)
        machines = [machine for machine in pager if group_of(metadata_values(machine)) == self.name]
        return tuple(sorted(machines, key=lambda machine: machine.name))

    def state_of(self, observed: Group) -> str:
        actions = observed.manager.current_actions
        return _state(
            observed.manager.target_size,
            {name: getattr(actions, name) for name in (*CREATING_ACTIONS, "deleting")},
            [machine.status for machine in observed.machines],
        )

    def created_at(self, observed: Group) -> datetime | None:
        return time_of(observed.manager.creation_timestamp)

    def charged_since(self, observed: Group) -> datetime | None:
        return min_time(time_of(machine.last_start_timestamp) for machine in observed.machines)

    def is_ours(self, observed: Group) -> bool:
        return bool(observed.manager.description == self.stack.names.ownership)

    def check(self, observed: Group) -> None:
        if not self.is_ours(observed):
            raise name_taken(self, stack_of_description(observed.manager.description))

    def diff(self, observed: Group | None) -> Change:
        machine, type_name = self.stack.machine, self.stack.accelerator.name
        if observed is None:
            because = f"no group in {self.stack.zone}: creating {type_name}"
            waiting = "" if self.flex_start is None else duration_text(self.flex_start)
            text = f"{because} as {machine.hosts} x {machine.machine_type}"
            return self.create(text + waiting)
        self.check(observed)
        state = self.state_of(observed)
        if state == "DELETING":
            return self.create("recreating the node, which is being deleted")
        for instance in observed.machines:
            for field, actual, desired in machine_differences(self.stack, instance):
                raise self.difference_error(field, actual, desired)
        if state not in ("READY", *TRANSITIONAL_STATES):
            return self.create(f"recreating the node, which is {state}")
        if len(observed.managed) != machine.hosts:
            actual = f"{len(observed.managed)} machines"
            raise self.difference_error("type", actual, f"{type_name} with {machine.hosts}")
        change = self.change_to_ready(state)
        if change is not None:
            return change
        stale = sorted({field for machine in observed.machines for field in self._stale(machine)})
        if stale:
            return self.update(stale_because(stale), stale)
        return self.nothing(f"READY with {type_name}")

    def _stale(self, machine: Any) -> list[str]:
        tags, metadata = machine.tags.items, metadata_values(machine)
        return stale_fields(self.stack, machine.labels, tags, metadata, self.metadata())

    def removal(self, observed: Group | None) -> Change:
        if observed is None or not self.is_ours(observed):
            return super().removal(observed)
        return self.delete(f"its {len(observed.managed)} machines are charged while they run")

    async def apply(self, change: Change, report: Report) -> None:
        if change.action is Action.DELETE:
            await self._delete(report)
        elif change.action is Action.CREATE:
            observed = await self.observe()  # another program may have created it meanwhile
            if observed is not None and self.diff(observed).action is Action.CREATE:
                await self._delete(report)
            await self._create(report)
        elif "readiness" in change.fields:
            await self._finish(report)
        else:
            await self._update(change.fields)

    async def _create(self, report: Report) -> None:
        where = {"project": self.stack.project, "zone": self.stack.zone}
        request = {**where, "instance_group_manager_resource": self._body()}

        async def create() -> None:
            await self.insert(
                "instance_group_managers",
                request,
                report,
                before="requesting the machines",
                seconds=DELETE_SECONDS,
            )

        await self.create_or_adopt(create, self.observe, report, check=self.check)
        await self._finish(report)

    def _body(self) -> dict[str, Any]:
        stack, regional = self.stack, f"projects/{self.stack.project}/regions/{self.stack.region}"
        return {
            "name": self.name,
            "description": stack.names.ownership,
            "base_instance_name": self.name,
            "instance_template": f"{regional}/instanceTemplates/{self.name}",
            "target_size": stack.machine.hosts,
            "target_size_policy": {"mode": "BULK"},  # all machines at once, or none
            # A slice that has lost a machine is recreated as a whole, by `up` or recovery.
            "instance_lifecycle_policy": {"default_action_on_failure": "DO_NOTHING"},
            "resource_policies": {
                "workload_policy": f"{regional}/resourcePolicies/{self.name}",
            },
        }

    async def _finish(self, report: Report) -> None:
        """Wait for a group that this program or another is creating, perhaps with other keys.

        If it fails it is deleted: otherwise it would create its machines whenever it can.
        """
        try:
            await self.wait_until_ready(report)
        except Unreachable:
            raise
        except TpuctlError:
            await self._delete(report)
            raise
        change = self.diff(await self.observe())
        if change.action is Action.UPDATE:
            await self._update(change.fields)

    async def _update(self, fields: Sequence[str]) -> None:
        await gather_all(
            update_machine(
                ComputeInstance(self, machine.name, "worker"), self.stack, self.metadata(), fields
            )
            for machine in await self._machines()
        )

    # Waiting.

    @property
    def ready_seconds(self) -> float:
        return MAX_WAIT_SECONDS if self.flex_start is not None else super().ready_seconds

    def failure_of(self, observed: Group) -> TpuctlError | None:
        """The first refusal of a machine. Flex-start waits for capacity and quota instead."""
        bulk = observed.manager.status.bulk_instance_operation
        refused = [entry.last_attempt.errors.errors for entry in observed.managed]
        refused.append(bulk.last_progress_check.error.errors)
        for errors in refused:
            error = self._refusal(errors)
            is_temporary = isinstance(error, NoCapacity | QuotaExceeded)
            if error is not None and not (is_temporary and self.flex_start is not None):
                return error
        return self._expired_error(observed) or super().failure_of(observed)

    def _refusal(self, errors: Sequence[Any]) -> TpuctlError | None:
        if not errors:
            return None
        return compute_error(errors[0], self.cloud, self.address, {"zone": self.stack.zone})

    def _expired_error(self, observed: Group) -> TpuctlError | None:
        """The error if valid_until has passed: groups wait without a deadline."""
        until = None if self.flex_start is None else self.flex_start.valid_until
        if until is None or observed.machines:
            return None
        created = time_of(observed.manager.creation_timestamp)
        assert created is not None, "an existing group has a time of creation"
        is_duration = re.fullmatch(DURATION, until) is not None
        deadline = (
            created + timedelta(seconds=seconds_of(until))
            if is_duration
            else datetime.fromisoformat(until)
        )
        if self.cloud.server_clock.now() < deadline:
            return None
        error = NoCapacity(
            "No capacity before valid_until",
            f"{self.address}: {self.stack.zone} had no capacity until "
            f"{deadline.astimezone(UTC):%Y-%m-%d %H:%M} UTC (tpu.queue.valid_until)",
            hint="Wait longer, or without a deadline by omitting valid_until, "
            "or add zones to tpu.zones, then run\n    tpuctl up",
        )
        error.scope = Scope.ZONE if is_duration else Scope.PROJECT  # a moment passes everywhere
        return error

    # Deletion.

    async def _delete(self, report: Report) -> None:
        """Delete the group with its machines, if it exists."""
        report("DELETING", None)
        name = f"{self.noun} {self.name}"

        async def group() -> Any | None:
            return await get_group(self, self.name)

        try:
            operation = await self.find("instance_group_managers", "delete_unary", **self.where)
        except (Usage, Conflict):  # another program deletes it
            await self.wait_until_gone(group, name, DELETE_SECONDS)
            return
        if operation is None:
            return
        deletion = self.finish(operation, DELETE_SECONDS)
        await self.confirm_deletion(deletion, group, name, DELETE_SECONDS)


def _state(size: int, actions: Mapping[str, int], statuses: Sequence[str]) -> str:
    """The state of a slice, in the words of the TPU API, by the group's size, its current actions,
    and the statuses of the machines that exist."""
    states = {machine_state(status) for status in statuses}
    if actions.get("deleting"):
        return "DELETING"
    if any(actions.get(name) for name in CREATING_ACTIONS):
        return "CREATING" if states - {"PENDING"} else "PENDING"
    if not size:
        return "TERMINATED"  # flex-start has ended
    if len(statuses) < size:
        return "PREEMPTED"
    for state in ("STOPPING", "DELETING", "STOPPED", *TRANSITIONAL_STATES):
        if state in states:
            return "TERMINATED" if state == "STOPPED" else state
    return "READY" if states == {"READY"} else "CREATING"


def _snake_case(name: str) -> str:
    return re.sub("[A-Z]", lambda match: f"_{match[0].lower()}", name)
