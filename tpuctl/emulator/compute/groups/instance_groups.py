"""Instance groups: the read-only view of managed groups. Unmanaged groups are not emulated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tpuctl.emulator.compute.core.collection import Items, ReadableCollection, Row
from tpuctl.emulator.compute.core.context import INSTANCE_GROUP_MANAGERS, ComputeContext
from tpuctl.emulator.compute.core.fingerprint import fingerprint
from tpuctl.emulator.compute.core.lists import matches
from tpuctl.emulator.compute.core.messages import LINK, as_row, message_of
from tpuctl.emulator.compute.groups.managed_instances import instance_name
from tpuctl.emulator.compute.instances.instances import Instances
from tpuctl.emulator.wire.registry import Caller


class InstanceGroups(ReadableCollection):
    """The groups of managers, with the same names."""

    message, plural, field = "InstanceGroup", "instanceGroups", "instance_group"
    scope = "zones"

    def __init__(self, context: ComputeContext, instances: Instances) -> None:
        super().__init__(context)
        self._instances = instances

    def find(self, name: str) -> Row | None:
        manager = self.context.find(INSTANCE_GROUP_MANAGERS, _manager(name))
        return None if manager is None else self._row(name, manager)

    def names(self, prefix: str) -> Sequence[str]:
        managers = self.context.names(INSTANCE_GROUP_MANAGERS, _manager(prefix))
        return [name.replace("/instanceGroupManagers/", "/instanceGroups/") for name in managers]

    def items(self, prefix: str) -> Items:
        return [(name, self.require(name)) for name in self.names(prefix)]

    def _row(self, name: str, manager: Row) -> Row:
        members = self._members(name, manager)
        row: Row = {
            "kind": "compute#instanceGroup",
            "id": manager["id"],
            "creationTimestamp": manager["creationTimestamp"],
            "name": manager["name"],
            "description": "This instance group is controlled by Instance Group Manager "
            f"'{manager['name']}'. To modify instances in this group, use the Instance Group "
            "Manager API: https://cloud.google.com/compute/docs/reference/latest/"
            "instanceGroupManagers",  # hashicorp/terraform-provider-google#3875
            "namedPorts": manager.get("namedPorts", []),
            "fingerprint": fingerprint(manager.get("namedPorts", [])),
            "size": len(members),
        }
        if members:
            (interface, *_) = members[0][1]["networkInterfaces"]
            row |= {key: LINK + interface[key] for key in ("network", "subnetwork")}
        return row

    def _members(self, name: str, manager: Row) -> Items:
        """The group's instances that exist."""
        names = [instance_name(_manager(name), entry["name"]) for entry in manager["managed"]]
        rows = [(full, self._instances.find(full)) for full in names]
        return [(full, row) for full, row in rows if row is not None]

    async def list_instances(self, request: Any, caller: Caller) -> Any:
        name = self.name_of(request)
        self.require(name)
        manager = self.context.find(INSTANCE_GROUP_MANAGERS, _manager(name))
        assert manager is not None, "required above"
        body = as_row(request.instance_groups_list_instances_request_resource)
        rows = [
            {"instance": LINK + full, "status": row["status"]}
            for full, row in self._members(name, manager)
            if body.get("instanceState", "ALL") == "ALL" or row["status"] == "RUNNING"
        ]
        answer = {
            "kind": "compute#instanceGroupsListInstances",
            "id": name,
            "items": [row for row in rows if matches(row, request.filter)],
            "selfLink": f"{LINK}{name}/listInstances",
        }
        return message_of("InstanceGroupsListInstances", answer)


class Autoscalers(ReadableCollection):
    """None exist: gcloud asks for them when it lists groups."""

    kind, message, plural, field = "compute.autoscalers", "Autoscaler", "autoscalers", "autoscaler"
    scope = "zones"


def _manager(name: str) -> str:
    """The manager's full name, of a group's; also of a prefix of one."""
    return name.replace("/instanceGroups/", "/instanceGroupManagers/")
