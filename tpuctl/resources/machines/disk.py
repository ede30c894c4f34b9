"""Data disks: created for the stack, or the user's, which are only attached."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

from tpuctl.cloud.clients import Cloud
from tpuctl.engine.resource import Report
from tpuctl.errors import Conflict, NotFound, Usage
from tpuctl.model.cost.cost import CostLine, disk_cost
from tpuctl.model.plan import Action, Change
from tpuctl.model.stack.schema import DataDisk as DiskSpec
from tpuctl.model.stack.stack import Stack
from tpuctl.model.status.inventory import InventoryItem
from tpuctl.model.text.names import STACK_LABEL
from tpuctl.resources.base import LabeledResource, Query, time_of
from tpuctl.resources.machines.disk_key import disk_encryption, key_differences

SECONDS = 300.0
IN_USE = "in use"


def disk_name(stack: Stack, index: int) -> str:
    """The name of the data disk at this index of the stack file's list."""
    return stack.file.tpu.data_disks[index].name or stack.names.disk(index)


def disk_path(stack: Stack, index: int) -> str:
    """The disk's path, for a node's `source_disk` and an instance's `source`."""
    return f"projects/{stack.project}/zones/{stack.zone}/disks/{disk_name(stack, index)}"


class DataDisk(LabeledResource):
    """One of `tpu.data_disks`, in the node's zone."""

    kind = "disk"
    group = "TPU"
    label = "data disks"
    is_zonal = True
    is_billable = True
    permissions = """
        read compute.viewer compute.disks.get compute.disks.list
        create compute.instanceAdmin.v1 compute.disks.create compute.disks.setLabels
        create compute.instanceAdmin.v1 compute.disks.delete compute.zoneOperations.get
    """

    @classmethod
    def applies(cls, stack: Stack) -> bool:
        return bool(stack.file.tpu.data_disks)

    @classmethod
    def from_inventory(
        cls, item: InventoryItem, stack: Stack, cloud: Cloud, *, delete_bucket: bool
    ) -> Self | None:
        if item.state == IN_USE and item.name.startswith(stack.names.node):
            return None  # a boot disk of the TPU, which is deleted with its instance
        return cls(stack, cloud, item.name, None)

    @classmethod
    def list_all(cls, query: Query) -> Iterator[InventoryItem]:
        for zone, disk in query.aggregated("disks"):
            yield InventoryItem(
                cls,
                disk["name"],
                disk["labels"][STACK_LABEL],
                zone,
                IN_USE if disk.get("users") else disk.get("status", ""),
                disk.get("type", "").rpartition("/")[2],
                time_of(disk.get("creationTimestamp")),
                size_gb=int(disk.get("sizeGb", 0)),
            )

    @classmethod
    def cost(cls, item: InventoryItem) -> CostLine:
        return disk_cost(item.detail, item.size_gb, item.zone)

    def __init__(self, stack: Stack, cloud: Cloud, name: str, spec: DiskSpec | None) -> None:
        super().__init__(stack, cloud)
        self._name = name
        self.spec = spec
        self.is_user_named = spec is not None and spec.name is not None
        self.is_billable = not self.is_user_named  # the user pays for an existing disk anyway

    @classmethod
    def at(cls, stack: Stack, cloud: Cloud, index: int) -> Self:
        """The disk at this index of the stack file's list."""
        return cls(stack, cloud, disk_name(stack, index), stack.file.tpu.data_disks[index])

    @property
    def name(self) -> str:
        return self._name

    @property
    def after(self) -> frozenset[str]:
        return frozenset({f"bucket/{self.stack.bucket}"})

    async def observe(self) -> Any | None:
        return await self.find("disks", "get", **self._where, disk=self.name)

    def diff(self, observed: Any | None) -> Change:
        if self.is_user_named:
            if observed is None:
                raise NotFound(
                    "No such disk",
                    f"{self.stack.zone} of project {self.stack.project} has no disk {self.name}",
                    hint="A disk can only be attached in its own zone. To create one:\n"
                    "    tpu: {data_disks: [{size_gb: 100}]}",
                )
            return self.nothing(f"disk {self.name} exists")
        if self.spec is None:
            return self.removal(observed)
        if observed is None:
            return self.create(f"{self.spec.size_gb} GB of {self.spec.type}")
        self.check(observed)
        kind = observed.type_.rpartition("/")[2]
        if (observed.size_gb, kind) != (self.spec.size_gb, self.spec.type):
            raise Conflict(
                "Disk differs",
                f"disk {self.name} has {observed.size_gb} GB of {kind}, the stack file says "
                f"{self.spec.size_gb} GB of {self.spec.type}",
                hint="Save its data, then delete the stack and create it again:\n    tpuctl down",
            )
        for field, actual, desired in key_differences(self.stack, observed, "encryption"):
            raise Conflict(
                "Disk differs",
                f"disk {self.name} has {field} {actual}, the stack file says {desired}",
                hint="Save its data, then delete the stack and create it again:\n    tpuctl down",
            )
        return self.nothing(f"{observed.size_gb} GB of {kind}")

    def is_ours(self, observed: Any) -> bool:
        return not self.is_user_named and super().is_ours(observed)

    def removal(self, observed: Any | None) -> Change:
        if observed is not None and self.is_user_named:
            return self.leave("not created by tpuctl, never deleted")
        if observed is None or not self.is_ours(observed):
            return super().removal(observed)
        return self.delete("created for this stack, with all its data")

    async def apply(self, change: Change, report: Report) -> None:
        if change.action is Action.DELETE:
            await self._delete(report)
            return
        await self.create_or_adopt(self._create, self.observe, report, check=self.diff)

    async def _create(self) -> None:
        disk = self._desired()
        await self.finish(
            await self.call("disks", "insert_unary", **self._where, disk_resource=disk)
        )

    async def _delete(self, report: Report) -> None:
        """Delete it once no machine uses it: that machine may be being deleted too."""
        was_free = False

        async def probe() -> bool | None:
            nonlocal was_free
            try:
                # None: boot disks are deleted with their machine.
                operation = await self.find("disks", "delete_unary", **self._where, disk=self.name)
            except (Usage, Conflict):
                disk = await self.observe()
                if disk is not None and not disk.users:
                    if was_free:
                        raise
                    was_free = True  # probably detached since: retry once
                    return None
                report("waiting until no machine uses it", None)
                return None
            await self.finish(operation)
            return True

        await self.poll(probe, f"detaching disk {self.name} from its machine", SECONDS)

    @property
    def _where(self) -> dict[str, Any]:
        return {"project": self.stack.project, "zone": self.stack.zone}

    def _desired(self) -> dict[str, Any]:
        assert self.spec is not None, "only disks in the stack file are created"
        return {
            "name": self.name,
            "description": self.stack.names.ownership,
            "labels": self.stack.new_labels,
            **disk_encryption(self.stack),
            "size_gb": self.spec.size_gb,
            "type_": f"zones/{self.stack.zone}/diskTypes/{self.spec.type}",
        }

    def check(self, observed: Any) -> None:
        if not self.is_ours(observed):
            raise Conflict(
                "Name taken",
                f"disk {self.name} exists in {self.stack.zone} and is not part of stack "
                f"{self.stack.name}",
                hint=f"Attach it with\n    tpu: {{data_disks: [{{name: {self.name}}}]}}\n"
                "or choose another stack name.",
            )
