"""What can be changed of an instance that is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tpuctl.emulator.compute.collection import Row, asked_once, fingerprint
from tpuctl.emulator.compute.errors import bad_field, condition_not_met
from tpuctl.emulator.compute.instance_lifecycle import Machines
from tpuctl.emulator.compute.instance_spec import (
    accounts,
    attached,
    machine_type_of,
    scheduling,
)
from tpuctl.emulator.compute.messages import as_row
from tpuctl.emulator.compute.project import check_fingerprint, checked_items
from tpuctl.emulator.state.errors import invalid
from tpuctl.emulator.wire.registry import Caller

__all__ = ["InstanceSettings"]


class InstanceSettings(Machines):
    """The part of the collection of instances that changes what they are made of."""

    message, plural, field = "Instance", "instances", "instance"
    scope = "zones"

    @asked_once
    async def set_metadata(self, name: str, request: Any, caller: Caller) -> Any:
        row, wanted = self.must(name), as_row(request.metadata_resource)
        items = checked_items(wanted)
        check_fingerprint(wanted.get("fingerprint", ""), row["metadata"]["items"])
        return self.begin_on("setMetadata", name, caller, {"items": items}, request.request_id)

    async def set_labels(self, request: Any, caller: Caller) -> Any:
        wanted = request.instances_set_labels_request_resource
        return self.begin_labels(self.name_of(request), wanted, caller, request.request_id)

    @asked_once
    async def set_tags(self, name: str, request: Any, caller: Caller) -> Any:
        row, wanted = self.must(name), as_row(request.tags_resource)
        if wanted.get("fingerprint", "") != fingerprint(row["tags"]):
            text = "Supplied fingerprint does not match current tags fingerprint."
            raise condition_not_met(text)
        changes = {"row": {"tags": {"items": wanted.get("items", [])}}}
        return self.begin_on("setTags", name, caller, changes, request.request_id)

    @asked_once
    async def attach_disk(self, name: str, request: Any, caller: Caller) -> Any:
        row = self.must(name)
        asked = as_row(request.attached_disk_resource)
        index = 1 + max(one["index"] for one in row["disks"])
        disk = attached(self._sources, name, index, {**asked, "boot": False})
        if any(one.get("deviceName") == disk["deviceName"] for one in row["disks"]):
            why = "The device name is in use."
            raise bad_field("resource.deviceName", disk["deviceName"], why)
        return self.begin_on("attachDisk", name, caller, {"disk": disk}, request.request_id)

    @asked_once
    async def detach_disk(self, name: str, request: Any, caller: Caller) -> Any:
        row = self.must(name)
        self._must_have(row, request.device_name)
        more = {"device": request.device_name}
        return self.begin_on("detachDisk", name, caller, more, request.request_id)

    @asked_once
    async def set_scheduling(self, name: str, request: Any, caller: Caller) -> Any:
        """What is not told of stays as it is; from or to spot only while it is stopped."""

        def change(row: Row) -> Row:
            before = row["scheduling"]
            asked = as_row(request.scheduling_resource)
            after = scheduling({**before, **asked})
            if after["preemptible"] != before["preemptible"]:
                _must_be_stopped(row, "scheduling.preemptible")
            return {"scheduling": after}

        return self._change(name, request, "setScheduling", change, caller)

    @asked_once
    async def set_machine_type(self, name: str, request: Any, caller: Caller) -> Any:
        """Of a stopped instance: what it has beyond that the local cloud does not imitate."""
        asked = as_row(request.instances_set_machine_type_request_resource)

        def change(row: Row) -> Row:
            _must_be_stopped(row, "machineType")
            return {"machineType": machine_type_of(name, asked)}

        return self._change(name, request, "setMachineType", change, caller)

    @asked_once
    async def set_service_account(self, name: str, request: Any, caller: Caller) -> Any:
        project = self.context.world.projects.require(request.project)
        asked = as_row(request.instances_set_service_account_request_resource)

        def change(row: Row) -> Row:
            _must_be_stopped(row, "serviceAccounts")
            return {"serviceAccounts": accounts(project, [asked] if asked.get("email") else [])}

        return self._change(name, request, "setServiceAccount", change, caller)

    @asked_once
    async def set_disk_auto_delete(self, name: str, request: Any, caller: Caller) -> Any:
        def change(row: Row) -> Row:
            self._must_have(row, request.device_name)
            disks = [
                {**one, "autoDelete": request.auto_delete}
                if one.get("deviceName") == request.device_name
                else one
                for one in row["disks"]
            ]
            return {"disks": disks}

        return self._change(name, request, "setDiskAutoDelete", change, caller)

    @asked_once
    async def set_deletion_protection(self, name: str, request: Any, caller: Caller) -> Any:
        # The description of the parameter: true unless it is given.
        wanted = request.deletion_protection if request.HasField("deletion_protection") else True
        changes = {"deletionProtection": wanted}
        return self._change(name, request, "setDeletionProtection", lambda row: changes, caller)

    def _change(
        self, name: str, request: Any, verb: str, change: Callable[[Row], Row], caller: Caller
    ) -> Any:
        changes = {"row": change(self.must(name))}
        return self.begin_on(verb, name, caller, changes, request.request_id, step=self.kind)

    @staticmethod
    def _must_have(row: Row, device: str) -> None:
        if all(one.get("deviceName") != device for one in row["disks"]):
            text = f"No attached disk found with device name '{device}'"
            raise bad_field("disk", device, text)


def _must_be_stopped(row: Row, field: str) -> None:
    # The words are a guess; that these changes need a stopped instance is in their descriptions.
    if row["status"] != "TERMINATED":
        text = f"The instance must be stopped before its {field} can be changed."
        raise invalid(f"Invalid resource usage: '{text}'.", reason="invalidResourceUsage")
