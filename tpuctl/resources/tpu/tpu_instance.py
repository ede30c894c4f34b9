"""A slice of one host that Compute Engine sells: an instance with TPU chips.

Slices of several hosts are groups (`tpu_group`), which share the base class.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, ClassVar

from tpuctl.catalog import is_tpu_machine
from tpuctl.engine.resource import Report
from tpuctl.errors import TpuctlError
from tpuctl.model.plan import Action, Change
from tpuctl.model.stack.schema import QueueSection
from tpuctl.model.stack.stack import Stack
from tpuctl.model.stack.stack_rules import MAX_WAIT_SECONDS
from tpuctl.model.status.inventory import InventoryItem
from tpuctl.model.text.names import STACK_LABEL
from tpuctl.resources.base import STACK_UPDATE, Query, time_of
from tpuctl.resources.machines.compute_instance import ComputeInstance, metadata_values
from tpuctl.resources.machines.instance_metadata import metadata_of, prerequisites
from tpuctl.resources.tpu.node_lifecycle import (
    CREATE_SECONDS,
    DELETE_SECONDS,
    SshNode,
    duration_text,
)
from tpuctl.resources.tpu.tpu_machine_spec import (
    capacity_of,
    external_addresses,
    machine_differences,
    machine_properties,
    machine_state,
    owning_group,
    slice_status,
    wait_seconds,
)
from tpuctl.resources.tpu.tpu_node_spec import stale_because, stale_fields

ENDING_STATES = ("STOPPING", "DELETING")


class MachineNode(SshNode):
    """A node that consists of Compute Engine instances."""

    api = "compute"

    @property
    def after(self) -> frozenset[str]:
        return frozenset({self.network.address} | prerequisites(self.stack))

    def metadata(self) -> dict[str, str]:
        """The metadata of the machines."""
        startup = self.cloud.endpoint.runs_startup_scripts
        return metadata_of(self.stack, self.key_line, startup=startup)

    @property
    def flex_start(self) -> QueueSection | None:
        """The settings of flex-start; None for other capacity."""
        tpu = self.stack.file.tpu
        return tpu.queue if tpu.capacity == "flex-start" else None


class TpuInstance(MachineNode):
    """Created with the stack's label, tag, account and key; recreated after preemption."""

    kind = "instance"
    label = "TPU instances"
    display_name = "node"
    permissions = """
        read compute.viewer compute.instances.get compute.instances.list
        create compute.viewer compute.addresses.list compute.disks.list compute.routers.list
        create compute.viewer compute.instanceGroupManagers.list compute.instanceTemplates.list
        create compute.viewer compute.resourcePolicies.list
        create compute.instanceAdmin.v1 compute.instances.create compute.instances.setLabels
        create compute.instanceAdmin.v1 compute.instances.setMetadata
        create compute.instanceAdmin.v1 compute.instances.setServiceAccount
        create compute.instanceAdmin.v1 compute.instances.setTags compute.disks.create
        create compute.instanceAdmin.v1 compute.subnetworks.use compute.zoneOperations.get
        create compute.instanceAdmin.v1 compute.subnetworks.useExternalIp
        create compute.instanceAdmin.v1 compute.instances.delete
        create compute.instanceAdmin.v1 compute.disks.setLabels
        create iam.serviceAccountUser iam.serviceAccounts.actAs
        update:state compute.instanceAdmin.v1 compute.instances.start compute.zoneOperations.get
        update:labels compute.instanceAdmin.v1 compute.instances.setLabels
        update:tags compute.instanceAdmin.v1 compute.instances.setTags
        update:ssh-keys,limits,metadata compute.instanceAdmin.v1 compute.instances.setMetadata
        update:labels,tags,ssh-keys,limits,metadata compute.viewer compute.zoneOperations.get
        update:ssh-keys,limits,metadata iam.serviceAccountUser iam.serviceAccounts.actAs
    """
    optional: ClassVar = {"update": STACK_UPDATE}

    @classmethod
    def applies(cls, stack: Stack) -> bool:
        return stack.is_compute and stack.machine.hosts == 1

    @classmethod
    def list_all(cls, query: Query) -> Iterator[InventoryItem]:
        for zone, instance in query.aggregated("instances"):
            machine_type = instance.get("machineType", "").rpartition("/")[2]
            if not is_tpu_machine(machine_type) or owning_group(instance):
                continue
            state = machine_state(instance.get("status", ""))
            status = slice_status(instance["name"], instance["id"], zone, state, [instance])
            yield InventoryItem(
                cls,
                status.name,
                instance["labels"][STACK_LABEL],
                zone,
                state,
                status.accelerator_type,
                status.created,
                capacity=capacity_of(instance),
                external_addresses=len(external_addresses(instance)),
                node=status,
            )

    @property
    def instance(self) -> ComputeInstance:
        return ComputeInstance(self, self.name, self.noun)

    async def observe(self) -> Any | None:
        return await self.instance.get()

    def state_of(self, observed: Any) -> str:
        return machine_state(observed.status)

    def created_at(self, observed: Any) -> datetime | None:
        return time_of(observed.creation_timestamp)

    def charged_since(self, observed: Any) -> datetime | None:
        return time_of(observed.last_start_timestamp)

    def diff(self, observed: Any | None) -> Change:
        type_name = self.stack.accelerator.name
        if observed is None:
            machine = self.stack.machine
            because = f"no instance in {self.stack.zone}: creating {type_name}"
            text = f"{because} as {machine.machine_type} with {machine.image}"
            queue = self.flex_start
            waiting = "" if queue is None else duration_text(queue, "up to 2h")
            return self.create(text + waiting)
        self.check(observed)
        state = self.state_of(observed)
        if state in ENDING_STATES and _is_deleted_at_end(observed):
            return self.create(f"recreating the node, which is {state}")
        for field, actual, desired in machine_differences(self.stack, observed):
            raise self.difference_error(field, actual, desired)
        if state == "STOPPING":
            return self.update("starting the node, which is STOPPING", ("state",))
        change = self.change_to_ready(state)
        if change is not None:
            return change
        tags, metadata = observed.tags.items, metadata_values(observed)
        stale = stale_fields(self.stack, observed.labels, tags, metadata, self.metadata())
        if stale:
            return self.update(stale_because(stale), stale)
        return self.nothing(f"READY with {type_name}")

    def removal(self, observed: Any | None) -> Change:
        if observed is None or not self.is_ours(observed):
            return super().removal(observed)
        machine_type = observed.machine_type.rpartition("/")[2]
        return self.delete(f"{machine_type} is charged while it runs, its disk while it exists")

    async def apply(self, change: Change, report: Report) -> None:
        if change.action is Action.DELETE:
            await self.instance.delete(report, "DELETING")
        elif change.action is Action.CREATE:
            await self._wait_until_ended(report)
            await self._create(report)
        elif "state" in change.fields:
            await self._wait_until_ended(report)
            await self.instance.start(report, "STARTING")
            await self.wait_until_ready(report)
        elif "readiness" in change.fields:
            await self._adopt(report)
        else:
            await update_machine(self.instance, self.stack, self.metadata(), change.fields)

    async def _create(self, report: Report) -> None:
        properties = machine_properties(
            self.stack,
            await self.network.usable_name(),
            self.key_line,
            startup=self.cloud.endpoint.runs_startup_scripts,
        )
        zone = f"zones/{self.stack.zone}"
        parameters = properties["disks"][0]["initialize_params"]
        parameters["disk_type"] = f"{zone}/diskTypes/{parameters['disk_type']}"
        machine_type = f"{zone}/machineTypes/{properties['machine_type']}"
        desired = {**properties, "name": self.name, "machine_type": machine_type}
        state, waiting = "CREATING", 0
        if self.flex_start is not None:
            state, waiting = "PENDING", wait_seconds(self.flex_start)
            desired["params"] = {"request_valid_for_duration": {"seconds": waiting}}
        # `diff` rejects an instance that is not ours or differs.
        was_created_by_another = await self.instance.insert_or_adopt(
            desired, report, check=self.diff, state=state, seconds=CREATE_SECONDS + waiting
        )
        if was_created_by_another:
            await self._adopt(report)
        else:
            await self.wait_until_ready(report)

    @property
    def ready_seconds(self) -> float:
        return CREATE_SECONDS + (MAX_WAIT_SECONDS if self.flex_start is not None else 0)

    def gone_error(self) -> TpuctlError:
        """Compute Engine deletes an instance that it cannot create, or that it preempts."""
        if self.flex_start is not None:
            return self.lost_error("there was no capacity while its request was valid")
        return self.lost_error("it was deleted") if self.stack.is_spot else super().gone_error()

    async def _adopt(self, report: Report) -> None:
        """Wait for an instance that another program is creating, perhaps with other keys."""
        await self.wait_until_ready(report)
        change = self.diff(await self.observe())
        if change.action is Action.UPDATE:
            await update_machine(self.instance, self.stack, self.metadata(), change.fields)

    async def _wait_until_ended(self, report: Report) -> None:
        """Wait while it is being stopped or deleted."""

        async def probe() -> bool | None:
            observed = await self.observe()
            if observed is None or self.state_of(observed) not in ENDING_STATES:
                return True
            report(self.state_of(observed), None)
            return None

        await self.poll(probe, f"{self.noun} {self.name} being stopped", DELETE_SECONDS)


async def update_machine(
    instance: ComputeInstance, stack: Stack, metadata: dict[str, str], fields: Sequence[str]
) -> None:
    """Update labels, tags and metadata of a TPU's instance; additions by others are kept."""
    names = {*fields}
    if "labels" in names:
        await instance.update_labels(stack.labels)
    if "tags" in names:
        await instance.update_tags(stack.tags)
    if names & {"limits", "metadata", "ssh-keys"}:
        await instance.update_metadata(metadata)


def _is_deleted_at_end(observed: Any) -> bool:
    """Whether an instance that is being stopped is deleted then."""
    action = observed.scheduling.instance_termination_action
    return bool(observed.status == "DEPROVISIONING" or action == "DELETE")
