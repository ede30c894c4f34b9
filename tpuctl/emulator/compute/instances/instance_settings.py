"""Changing the settings of an existing instance."""

from __future__ import annotations

from typing import Any

from tpuctl.emulator.compute.core.collection import Row, idempotent
from tpuctl.emulator.compute.core.errors import bad_field, condition_not_met
from tpuctl.emulator.compute.core.fingerprint import fingerprint
from tpuctl.emulator.compute.core.messages import as_row, message_of
from tpuctl.emulator.compute.core.supported_fields import (
    ATTACHED_DISK,
    EXISTING_DISK,
    OUTPUT_ONLY,
    check_supported,
)
from tpuctl.emulator.compute.instances.instance_lifecycle import InstanceMachines
from tpuctl.emulator.compute.instances.instance_spec import (
    attached_disk,
    machine_type_of,
    service_accounts,
    stored_machine_type,
)
from tpuctl.emulator.compute.instances.project import check_fingerprint, checked_items
from tpuctl.emulator.compute.offerings.scheduling import scheduling
from tpuctl.emulator.state.errors import invalid, unsupported_field
from tpuctl.emulator.wire.registry import Caller

# By the method for the whole resource.
_UPDATED_FIELDS = ("deletionProtection", "description", "machineType")
_ACTIONS = ("", "NO_EFFECT", "REFRESH", "RESTART")  # instances.update, the least disruptive first


class InstanceSettings(InstanceMachines):
    """The part of the instances collection that changes settings."""

    message, plural, field = "Instance", "instances", "instance"
    scope, labels_field = "zones", "instances_set_labels_request_resource"

    @idempotent
    async def set_metadata(self, name: str, request: Any, caller: Caller) -> Any:
        row, body = self.require(name), as_row(request.metadata_resource)
        items = checked_items(self.context, name.split("/")[1], body)
        check_fingerprint(body.get("fingerprint", ""), row["metadata"]["items"])
        return self.begin("setMetadata", name, caller, {"items": items}, request.request_id)

    @idempotent
    async def set_tags(self, name: str, request: Any, caller: Caller) -> Any:
        row, body = self.require(name), as_row(request.tags_resource)
        if body.get("fingerprint", "") != fingerprint(row["tags"]["items"]):
            text = "Supplied fingerprint does not match current tags fingerprint."
            raise condition_not_met(text)
        changes = {"row": {"tags": {"items": body.get("items", [])}}}
        return self.begin("setTags", name, caller, changes, request.request_id)

    @idempotent
    async def attach_disk(self, name: str, request: Any, caller: Caller) -> Any:
        row = self.require(name)
        body = as_row(request.attached_disk_resource)
        check_supported(body, EXISTING_DISK if "source" in body else ATTACHED_DISK)
        if request.force_attach:
            body["forceAttach"] = True
        if body.get("boot") and any(disk["boot"] for disk in row["disks"]):
            raise bad_field("resource.boot", "true", "The instance has a boot disk.")
        index = 1 + max((other["index"] for other in row["disks"]), default=-1)
        machine = stored_machine_type(row["machineType"])
        disk = attached_disk(self.sources, name, index, body, machine)
        if any(other.get("deviceName") == disk["deviceName"] for other in row["disks"]):
            reason = "The device name is in use."
            raise bad_field("resource.deviceName", disk["deviceName"], reason)
        more = {"disk": disk, "force": body.get("forceAttach", False)}
        return self.begin("attachDisk", name, caller, more, request.request_id)

    @idempotent
    async def detach_disk(self, name: str, request: Any, caller: Caller) -> Any:
        row = self.require(name)
        disk = self._require_device(row, request.device_name)
        if disk["boot"]:
            _require_stopped(row, "boot disk")
        if disk["type"] == "SCRATCH":
            raise invalid("Local SSDs cannot be detached.")  # a guess
        more = {"device": request.device_name}
        return self.begin("detachDisk", name, caller, more, request.request_id)

    @idempotent
    async def set_scheduling(self, name: str, request: Any, caller: Caller) -> Any:
        """Fields left out keep their values; provisioning model only while stopped."""
        row = self.require(name)
        before = row["scheduling"]
        after = scheduling({**before, **as_row(request.scheduling_resource)})
        if after["preemptible"] != before["preemptible"]:
            _require_stopped(row, "scheduling.preemptible")
        return self._change("setScheduling", name, request, caller, scheduling=after)

    @idempotent
    async def set_machine_type(self, name: str, request: Any, caller: Caller) -> Any:
        """Only while stopped."""
        _require_stopped(self.require(name), "machineType")
        body = as_row(request.instances_set_machine_type_request_resource)
        full_type = machine_type_of(name, body)
        return self._change("setMachineType", name, request, caller, machineType=full_type)

    @idempotent
    async def set_service_account(self, name: str, request: Any, caller: Caller) -> Any:
        project = self.context.registry.projects.require(request.project)
        _require_stopped(self.require(name), "serviceAccounts")
        body = as_row(request.instances_set_service_account_request_resource)
        accounts = service_accounts(project, [body] if body.get("email") else [])
        return self._change("setServiceAccount", name, request, caller, serviceAccounts=accounts)

    @idempotent
    async def set_disk_auto_delete(self, name: str, request: Any, caller: Caller) -> Any:
        row = self.require(name)
        self._require_device(row, request.device_name)
        disks = [
            {**disk, "autoDelete": request.auto_delete}
            if disk.get("deviceName") == request.device_name
            else disk
            for disk in row["disks"]
        ]
        return self._change("setDiskAutoDelete", name, request, caller, disks=disks)

    @idempotent
    async def set_deletion_protection(self, name: str, request: Any, caller: Caller) -> Any:
        # The parameter's description: defaults to true.
        protected = request.deletion_protection if request.HasField("deletion_protection") else True
        self.require(name)
        return self._change(
            "setDeletionProtection", name, request, caller, deletionProtection=protected
        )

    @idempotent
    async def update_shielded_instance_config(self, name: str, request: Any, caller: Caller) -> Any:
        """Only while stopped. Fields left out keep their values."""
        row = self.require(name)
        _require_stopped(row, "shieldedInstanceConfig")
        config = {
            **row["shieldedInstanceConfig"],
            **as_row(request.shielded_instance_config_resource),
        }
        verb = "updateShieldedInstanceConfig"
        return self._change(verb, name, request, caller, shieldedInstanceConfig=config)

    @idempotent
    async def update(self, name: str, request: Any, caller: Caller) -> Any:
        """The whole resource, of which only some fields may differ from the existing one's."""
        row = self.require(name)
        body = {"description": "", **as_row(request.instance_resource)}
        before = {"description": "", **as_row(message_of("Instance", self.show(name, row)))}
        changes = {}
        for field, value in body.items():
            if field in OUTPUT_ONLY or value == before.get(field):
                continue
            if field not in _UPDATED_FIELDS:
                raise unsupported_field(f"resource.{field}")
            changes[field] = value
        if "machineType" in changes:
            changes["machineType"] = machine_type_of(name, changes)
        verb = "updateAndRestart" if self._needs_restart(row, changes, request) else "update"
        arguments = {"row": changes}
        return self.begin(
            verb, name, caller, arguments, request.request_id, shown_verb="update", step=self.kind
        )

    @staticmethod
    def _needs_restart(row: Row, changes: Row, request: Any) -> bool:
        """Of a running instance, if the change or the request demands it. Raises an error, whose
        wording is a guess, if the request does not allow it."""
        least, allowed = request.minimal_action, request.most_disruptive_allowed_action
        for field, value in (("minimalAction", least), ("mostDisruptiveAllowedAction", allowed)):
            if value not in _ACTIONS:
                raise bad_field(field, value, f"Must be one of {', '.join(_ACTIONS[1:])}.")
        if row["status"] == "TERMINATED":
            return False
        action = "RESTART" if "machineType" in changes else "NO_EFFECT"
        action = max(action, least, key=_ACTIONS.index)
        if allowed and _ACTIONS.index(action) > _ACTIONS.index(allowed):
            reason = f"The update needs the action {action}."
            raise bad_field("mostDisruptiveAllowedAction", allowed, reason)
        return bool(action == "RESTART")

    def _change(self, verb: str, name: str, request: Any, caller: Caller, **changes: Any) -> Any:
        arguments = {"row": changes}
        return self.begin(verb, name, caller, arguments, request.request_id, step=self.kind)

    @staticmethod
    def _require_device(row: Row, device: str) -> Row:
        for disk in row["disks"]:
            if disk["deviceName"] == device:
                attachment: Row = disk
                return attachment
        raise bad_field("disk", device, f"No attached disk found with device name '{device}'")


def _require_stopped(row: Row, field: str) -> None:
    # The wording is a guess; the methods' descriptions require a stopped instance.
    if row["status"] != "TERMINATED":
        text = f"The instance must be stopped before its {field} can be changed."
        raise invalid(f"Invalid resource usage: '{text}'.", reason="invalidResourceUsage")
