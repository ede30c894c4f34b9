"""The controller: a Compute Engine VM that drives a TPU node, or accompanies a TPU VM."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Self

from tpuctl.catalog import is_tpu_machine
from tpuctl.cloud.clients import Cloud
from tpuctl.engine.resource import Report
from tpuctl.errors import Conflict, NotFound, OperationFailed, TpuctlError
from tpuctl.model.cost.cost import CostLine, machine_cost, with_addresses
from tpuctl.model.plan import Action, Change
from tpuctl.model.stack.schema import ControllerSection
from tpuctl.model.stack.stack import Stack
from tpuctl.model.status.inventory import InventoryItem
from tpuctl.model.text.names import STACK_LABEL
from tpuctl.model.text.ssh_key_lines import public_key_line
from tpuctl.resources.base import (
    STACK_UPDATE,
    LabeledResource,
    Query,
    time_of,
)
from tpuctl.resources.machines.boot_image import find_image
from tpuctl.resources.machines.compute_instance import (
    STARTING_STATES,
    ComputeInstance,
    boot_differences,
    boot_disk,
    metadata_items,
    metadata_values,
    network_interface,
    shielded,
)
from tpuctl.resources.machines.disk import disk_name, disk_path
from tpuctl.resources.machines.disk_key import key_differences
from tpuctl.resources.machines.instance_metadata import (
    SCOPE,
    metadata_differs,
    metadata_of,
    prerequisites,
    watch_metadata,
)
from tpuctl.resources.network.network import Network, network_differences

SECONDS = 900.0
# Google's states for stopped machines.
STOPPED_STATES = ("TERMINATED", "STOPPED")
MODES = {"read-write": "READ_WRITE", "read-only": "READ_ONLY"}


class Controller(LabeledResource):
    """Created in the TPU's zone with the stack's label, tag, account, key and data disks."""

    kind = "controller"
    group = "TPU"
    label = "the controller"
    is_machine = True
    has_ssh = True
    is_zonal = True
    is_billable = True
    uncharged_before_states = ("PENDING", "PROVISIONING", "STAGING")
    uncharged_after_states = ("STOPPED", "SUSPENDED", "TERMINATED")
    permissions = """
        read compute.viewer compute.instances.get compute.instances.list
        create compute.instanceAdmin.v1 compute.instances.create compute.instances.setLabels
        create compute.instanceAdmin.v1 compute.instances.setMetadata
        create compute.instanceAdmin.v1 compute.instances.setServiceAccount
        create compute.instanceAdmin.v1 compute.instances.setTags compute.disks.create
        create compute.instanceAdmin.v1 compute.subnetworks.use compute.zoneOperations.get
        create compute.instanceAdmin.v1 compute.subnetworks.useExternalIp
        create compute.instanceAdmin.v1 compute.instances.delete compute.disks.delete
        create compute.instanceAdmin.v1 compute.disks.setLabels
        create compute.viewer compute.disks.get
        create iam.serviceAccountUser iam.serviceAccounts.actAs
        update:status compute.instanceAdmin.v1 compute.instances.start
        update:disks compute.instanceAdmin.v1 compute.instances.attachDisk compute.disks.use
        update:status,disks compute.instanceAdmin.v1 compute.zoneOperations.get
        update:ssh-keys,limits,metadata compute.instanceAdmin.v1 compute.instances.setMetadata
        update:ssh-keys,limits,metadata compute.instanceAdmin.v1 compute.zoneOperations.get
        update:ssh-keys,limits,metadata iam.serviceAccountUser iam.serviceAccounts.actAs
    """
    optional: ClassVar = {"update": STACK_UPDATE}

    @classmethod
    def applies(cls, stack: Stack) -> bool:
        return stack.controller is not None

    @classmethod
    def from_inventory(
        cls, item: InventoryItem, stack: Stack, cloud: Cloud, *, delete_bucket: bool
    ) -> Self:
        return cls(Network(stack, cloud), str)

    @classmethod
    def list_all(cls, query: Query) -> Iterator[InventoryItem]:
        for zone, instance in query.aggregated("instances"):
            machine_type = instance.get("machineType", "").rpartition("/")[2]
            if is_tpu_machine(machine_type):
                continue
            interfaces = instance.get("networkInterfaces", ())
            accesses = [access for face in interfaces for access in face.get("accessConfigs", ())]
            is_spot = instance.get("scheduling", {}).get("preemptible", False)
            yield InventoryItem(
                cls,
                instance["name"],
                instance["labels"][STACK_LABEL],
                zone,
                instance.get("status", ""),
                machine_type,
                time_of(instance.get("creationTimestamp")),
                capacity="spot" if is_spot else "on-demand",
                external_addresses=sum(1 for access in accesses if access.get("natIP")),
            )

    @classmethod
    def cost(cls, item: InventoryItem) -> CostLine:
        line = machine_cost(item.detail, item.zone, item=item.address, spot=item.is_spot)
        return with_addresses(line, item.external_addresses, spot=item.is_spot)

    def __init__(
        self, network: Network, public_key: Callable[[], str], *, tpu: Stack | None = None
    ) -> None:
        """`tpu` is the stack in the place of its TPU, if that is not the network's."""
        super().__init__(network.stack, network.cloud)
        self.tpu_stack = tpu or network.stack
        self.network = network
        self.public_key = public_key  # called on demand: generating a key is slow
        self._image_problem: TpuctlError | None = None

    @property
    def section(self) -> ControllerSection:
        section = self.stack.controller
        assert section is not None, "the stack has a controller"
        return section

    @property
    def name(self) -> str:
        return self.stack.names.controller

    @property
    def after(self) -> frozenset[str]:
        needed = {self.network.address} | prerequisites(self.stack)
        # Its boot disk, which has its name, is only listed by `down`: it is deleted with the
        # machine, and stays if the machine may not be deleted.
        disks = {f"disk/{self.stack.zone}/{self.name}"}
        return frozenset(needed | disks | {f"disk/{disk_name(self.stack, i)}" for i in self._disks})

    @property
    def key_line(self) -> str:
        return public_key_line(self.stack.user, self.public_key())

    @property
    def _disks(self) -> range:
        """Data disks attach to the controller if the TPU has no machine."""
        return range(len(self.stack.file.tpu.data_disks) if self.stack.is_node else 0)

    @property
    def instance(self) -> ComputeInstance:
        return ComputeInstance(self, self.name, "controller")

    async def observe(self) -> Any | None:
        """The instance. If it does not exist, also looks for its image, for `diff` to report."""
        instance = await self.instance.get()
        if instance is None:
            self._image_problem = await self._find_image_problem()
        return instance

    async def _find_image_problem(self) -> TpuctlError | None:
        try:
            await find_image(self.stack, self.cloud)
        except NotFound as error:
            return error
        except TpuctlError:  # the project does not exist, or its API is not enabled yet
            return None
        return None

    def diff(self, observed: Any | None) -> Change:
        machine_type = self.section.machine_type
        if observed is None:
            if self._image_problem is not None:
                raise self._image_problem
            goes_on = "; it recovers jobs unattended" if self.stack.has_recovery else ""
            creation = f"creating {machine_type}{goes_on}"
            return self.create(f"no controller in {self.stack.zone}: {creation}")
        self.check(observed)
        for field, actual, desired in self._differences(observed):
            raise Conflict(
                "Controller differs",
                f"controller {self.name} has {field} {actual}, the stack file says {desired}",
                hint="To recreate it, delete it first:\n    tpuctl down",
            )
        status = observed.status
        if status in STOPPED_STATES:
            return self.update(f"starting the controller, which is {status}", ("status",))
        if status in STARTING_STATES:
            return self.update(f"waiting for the controller, which is {status}", ("readiness",))
        if status != "RUNNING":
            raise Conflict(
                "Controller not usable",
                f"controller {self.name} is {status}",
                hint="Wait until that ends, then retry. To see its state:\n    tpuctl status",
            )
        missing = list(metadata_differs(metadata_values(observed), self._updatable_metadata()))
        if self._unattached(observed):
            missing.append("disks")
        if missing:
            because = {
                "ssh-keys": "adding this machine's SSH key",
                "limits": "limits changed in the stack file",
                "metadata": "watchdog changed",
                "disks": "attaching disks",
            }
            return self.update(" and ".join(because[field] for field in missing), missing)
        return self.nothing(f"RUNNING as {machine_type}")

    def _differences(self, observed: Any) -> Iterator[tuple[str, str, str]]:
        """Differences that cannot be updated, as (field, actual, desired)."""
        machine_type = observed.machine_type.rpartition("/")[2]
        if machine_type != self.section.machine_type:
            yield "machine type", machine_type, self.section.machine_type
        yield from boot_differences(observed, self.section.secure_boot)
        for disk in observed.disks:
            if disk.boot:
                yield from key_differences(self.stack, disk, "boot disk")
        for interface in observed.network_interfaces:
            yield from network_differences(self.stack, interface.network, interface.subnetwork)

    def _unattached(self, observed: Any) -> list[int]:
        attached = {disk.source.rpartition("/")[2] for disk in observed.disks}
        return [index for index in self._disks if disk_name(self.stack, index) not in attached]

    def removal(self, observed: Any | None) -> Change:
        if observed is None or not self.is_ours(observed):
            return super().removal(observed)
        kind = observed.machine_type.rpartition("/")[2]
        return self.delete(f"{kind} is charged while it runs, its disk while it exists")

    async def apply(self, change: Change, report: Report) -> None:
        if change.action is Action.DELETE:
            await self.instance.delete(report)
            return
        # With other keys, or from another stack file.
        created_elsewhere = "readiness" in change.fields
        if change.action is Action.CREATE:
            desired = await self._desired()
            created_elsewhere = await self.instance.insert_or_adopt(
                desired, report, check=self.check
            )
        elif "status" in change.fields:
            await self.instance.start(report)
        else:
            await self._update(change, report)
        await self._wait_until_running(report)
        if created_elsewhere:
            await self._update(self.diff(await self.instance.get()), report)

    async def _update(self, change: Change, report: Report) -> None:
        if {"ssh-keys", "limits", "metadata"} & {*change.fields}:
            await self.instance.update_metadata(self._desired_metadata())
        if "disks" in change.fields:
            await self._attach(report)

    async def _desired(self) -> dict[str, Any]:
        stack, section = self.stack, self.section
        interface = network_interface(stack, await self.network.usable_name())
        boot = boot_disk(
            stack,
            await find_image(stack, self.cloud),
            section.disk_gb,
            f"zones/{stack.zone}/diskTypes/{section.disk_type}",
        )
        scopes = [SCOPE] if section.scopes == "auto" else list(section.scopes)
        return {
            "name": self.name,
            "description": stack.names.ownership,
            "machine_type": f"zones/{stack.zone}/machineTypes/{section.machine_type}",
            "disks": [boot, *(self._data_disk(index) for index in self._disks)],
            "network_interfaces": [interface],
            "service_accounts": [{"email": stack.service_account, "scopes": scopes}],
            **shielded(section.secure_boot),
            "labels": stack.new_labels,
            "tags": {"items": [stack.names.tag, *stack.file.network.tags]},
            "metadata": {"items": metadata_items(self._desired_metadata())},
        }

    def _data_disk(self, index: int) -> dict[str, Any]:
        disk = self.stack.file.tpu.data_disks[index]
        return {
            "source": disk_path(self.stack, index),
            "device_name": disk_name(self.stack, index),
            "mode": MODES[disk.mode],
            "auto_delete": False,
        }

    def _desired_metadata(self) -> dict[str, str]:
        stack = self.stack
        if not stack.is_node:  # the stack file's metadata and startup script are for the workers
            return {"enable-guest-attributes": "TRUE", **self._updatable_metadata()}
        facts = {
            "tpu-name": stack.names.node,
            "tpu-zone": stack.zone,
            "tpu-type": stack.accelerator.name,
            "tpu-version": stack.runtime.version,
        }
        startup = self.cloud.endpoint.runs_startup_scripts
        return {**facts, **metadata_of(stack, self.key_line, startup=startup)}

    def _updatable_metadata(self) -> dict[str, str]:
        """Metadata that is updated on an existing controller."""
        startup = self.cloud.endpoint.runs_startup_scripts
        watch = watch_metadata(self.tpu_stack, on_controller=True, startup=startup)
        return {"ssh-keys": self.key_line, **watch}

    async def _attach(self, report: Report) -> None:
        instance = await self.instance.get()
        for index in self._unattached(instance) if instance is not None else ():
            report(f"attaching {disk_name(self.stack, index)}", None)
            operation = await self.instance.call(
                "attach_disk_unary", attached_disk_resource=self._data_disk(index)
            )
            await self.instance.wait_for(operation)

    async def _wait_until_running(self, report: Report) -> None:
        async def probe() -> bool | None:
            instance = await self.instance.get()
            if instance is None or instance.status in (*STOPPED_STATES, "STOPPING"):
                state = "gone" if instance is None else instance.status
                raise OperationFailed(
                    "Controller did not start",
                    f"{self.name} is {state}",
                    hint=(
                        "The zone may have no such machine left. Retry, or set another\n"
                        "controller.machine_type, then run\n    tpuctl up"
                    ),
                )
            if instance.status == "RUNNING":
                return True
            report(instance.status, None)
            return None

        await self.poll(probe, f"controller {self.name} becoming RUNNING", SECONDS)
