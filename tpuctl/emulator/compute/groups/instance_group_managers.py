"""Managed instance groups of a zone: their specification, size, and managed instances."""

from __future__ import annotations

import math
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tpuctl.catalog import tpu_machine_type
from tpuctl.emulator.compute.core.collection import Collection, Row, Rows, check_name, idempotent
from tpuctl.emulator.compute.core.context import (
    INSTANCE_GROUP_MANAGERS,
    RESIZE_REQUESTS,
    RESOURCE_POLICIES,
    ComputeContext,
)
from tpuctl.emulator.compute.core.errors import bad_field, not_ready, unknown_reference
from tpuctl.emulator.compute.core.fingerprint import fingerprint
from tpuctl.emulator.compute.core.lists import matches
from tpuctl.emulator.compute.core.messages import LINK, as_row, message_of
from tpuctl.emulator.compute.groups.managed_instances import (
    ManagedInstances,
    instance_name,
    names_of,
    topology_of,
)
from tpuctl.emulator.compute.instances.instance_templates import find_template, template_name
from tpuctl.emulator.compute.instances.instances import Instances
from tpuctl.emulator.compute.offerings.scheduling import FLEX_START
from tpuctl.emulator.state.errors import invalid, unsupported_field
from tpuctl.emulator.state.locations import region_of
from tpuctl.emulator.state.operations import Arguments, Effect
from tpuctl.emulator.wire.registry import Caller

_SUFFIX_CHARACTERS = "0123456789bcdfghjklmnpqrstvwxz"  # as seen in names such as web-1k3s
_MAX_SIZE = 1000  # the description of `insert`
_NOT_EMULATED = (
    *("autoHealingPolicies", "distributionPolicy", "instanceFlexibilityPolicy", "statefulPolicy"),
    *("targetPools", "allInstancesConfig"),
)
# No instance is stopped or suspended in reserve.
_ONLY_VALUES: Mapping[str, Any] = {
    "targetStoppedSize": 0,
    "targetSuspendedSize": 0,
    "standbyPolicy": {"initialDelaySec": 0, "mode": "MANUAL"},
}
_ACTIONS = (
    *("abandoning", "creating", "creatingWithoutRetries", "deleting", "none", "recreating"),
    *("refreshing", "restarting", "resuming", "starting", "stopping", "suspending", "verifying"),
)


class InstanceGroupManagers(Collection):
    """Managers of groups: they decide which instances there should be.

    A row has, besides the resource's fields, `managed`: an entry for each instance, and `errors`:
    those of `listErrors`. `ManagedInstances` does the rest.
    """

    kind, message = INSTANCE_GROUP_MANAGERS, "InstanceGroupManager"
    plural, field, scope = "instanceGroupManagers", "instance_group_manager", "zones"

    def __init__(self, context: ComputeContext, instances: Instances) -> None:
        super().__init__(context)
        self._instances = instances
        self._work = ManagedInstances(context, instances)

    def verbs(self) -> dict[str, Effect]:
        planned = Effect(lambda arguments: None)  # the work of the group does it
        return {
            **super().verbs(),
            "delete": Effect(self.finish_delete, self._delete_instances),
            **dict.fromkeys(("resize", "deleteInstances", "recreateInstances"), planned),
        }

    def resume(self) -> None:
        for name in self.names(""):
            self._work.wake(name)

    def show(self, name: str, row: Row) -> Row:
        resource = {
            field: value
            for field, value in super().show(name, row).items()
            if field not in ("managed", "errors", "deleting")
        }
        actions = Counter(entry["currentAction"].lower() for entry in row["managed"])
        template = LINK + row["instanceTemplate"]
        size = {"calculated": row["targetSize"]}
        resource |= {
            "instanceGroup": f"{LINK}{name.replace('/instanceGroupManagers/', '/instanceGroups/')}",
            "instanceTemplate": template,
            "versions": [{"instanceTemplate": template, "targetSize": size}],
            "fingerprint": fingerprint({key: row[key] for key in row if key != "managed"}),
            "currentActions": {action: actions[action.lower()] for action in _ACTIONS},
            "status": self._status(name, row),
        }
        if policy := row.get("resourcePolicies", {}).get("workloadPolicy"):
            resource["resourcePolicies"] = {"workloadPolicy": LINK + policy}
        return resource

    def _status(self, name: str, row: Row) -> Row:
        is_complete = all(
            entry["currentAction"] == "NONE"
            and self._instances.is_running(instance_name(name, entry["name"]))
            for entry in row["managed"]
        )
        status: Row = {
            "isStable": is_complete and not row.get("deleting"),
            "versionTarget": {"isReached": True},
            "stateful": {
                "hasStatefulConfig": False,
                "perInstanceConfigs": {"allEffective": True},
            },
            "allInstancesConfig": {"effective": True},
        }
        creating = names_of(row, "CREATING", "RECREATING")
        if row["targetSizePolicy"]["mode"] == "BULK":
            status["bulkInstanceOperation"] = {"inProgress": bool(creating)}
            if creating and row["errors"]:
                last = row["errors"][-1]
                status["bulkInstanceOperation"]["lastProgressCheck"] = {
                    "timestamp": last["timestamp"],
                    "error": {"errors": [last["error"]]},
                }
        if (topology := topology_of(self.context, row)) and row["managed"]:
            state = "ACTIVE" if is_complete else "ACTIVATING" if creating else "INCOMPLETE"
            status["appliedAcceleratorTopologies"] = [
                {"acceleratorTopology": topology, "state": state}
            ]
        return status

    def complete(self, name: str, row: Row) -> Row:
        for field in _NOT_EMULATED:
            if field in row:
                raise unsupported_field(f"resource.{field}")
        for field, value in _ONLY_VALUES.items():
            requested = row.get(field, value)
            if value != ({**value, **requested} if isinstance(value, dict) else requested):
                raise unsupported_field(f"resource.{field}")
        size = row.get("targetSize", 0)
        _check_size(size)
        base = row.get("baseInstanceName") or row["name"]
        check_name(base)
        template = self._template(name, row)
        row = {
            "description": "",
            "listManagedInstancesResults": "PAGELESS",
            **row,
            "baseInstanceName": base,
            "instanceTemplate": template,
            "targetSize": size,
            **_ONLY_VALUES,
            "targetSizePolicy": {"mode": "INDIVIDUAL", **row.get("targetSizePolicy", {})},
            "instanceLifecyclePolicy": {
                "defaultActionOnFailure": "REPAIR",
                "forceUpdateOnRepair": "NO",
                "onFailedHealthCheck": "DEFAULT_ACTION",
                **row.get("instanceLifecyclePolicy", {}),
            },
            "updatePolicy": {
                "type": "OPPORTUNISTIC",
                "minimalAction": "REPLACE",
                "replacementMethod": "SUBSTITUTE",
                "maxSurge": {"fixed": 1, "calculated": 1},
                "maxUnavailable": {"fixed": 1, "calculated": 1},
                **row.get("updatePolicy", {}),
            },
        }
        if policy := row.get("resourcePolicies", {}).get("workloadPolicy"):
            row["resourcePolicies"] = {"workloadPolicy": self._policy(name, policy)}
        self._check_slice(row)
        row["managed"] = _new_entries(base, size, ())
        row["errors"] = []
        return row

    def _template(self, name: str, row: Row) -> str:
        """The full name of the group's template, given by its field or as the only version."""
        versions = row.pop("versions", [])
        for index, version in enumerate(versions):
            for field in version.keys() - {"instanceTemplate"}:
                if field != "targetSize" or version[field].keys() - {"calculated"}:
                    raise unsupported_field(f"resource.versions[{index}].{field}")
        reference = row.get("instanceTemplate") or (
            versions[0].get("instanceTemplate", "") if len(versions) == 1 else ""
        )
        zone, field = "/".join(name.split("/")[:4]), "resource.instanceTemplate"
        if not reference:
            raise invalid(f"Required field '{field}' not specified", reason="required")
        return template_name(self.context, zone, reference, field)

    def _policy(self, name: str, reference: str) -> str:
        """The full name of the workload policy, which is given by URL.

        Error text of a bare name: public reports of 2026-07.
        """
        project, zone = name.split("/")[1], name.split("/")[3]
        field = "resource.resourcePolicies.workloadPolicy"
        place = re.search(r"regions/([^/]+)/resourcePolicies/[^/]+$", reference)
        if place is None:
            raise bad_field(field, reference, "The URL is malformed.")
        if place[1] != region_of(zone):
            raise bad_field(field, reference, "The policy must be in the region of the group.")
        full = f"projects/{self._project_in(reference, project)}/{place[0]}"
        if self.context.find(RESOURCE_POLICIES, full) is None:
            raise unknown_reference(field, reference, "resource policy")
        return full

    def _check_slice(self, row: Row) -> None:
        """The rules of groups that form a slice of a TPU.

        BULK with flex-start, and its error: public reports of 2026-07; no repairs with it:
        docs.cloud.google.com/compute/docs/instance-groups/about-bulk-mode. That the size is that of
        the topology: .../docs/tpus/create-tpu-mig-multi-host-slice.
        """
        properties = (find_template(self.context, row["instanceTemplate"]) or {})["properties"]
        machine = tpu_machine_type(properties["machineType"])
        is_bulk = row["targetSizePolicy"]["mode"] == "BULK"
        is_flex_start = properties.get("scheduling", {}).get("provisioningModel") == FLEX_START
        if is_bulk and machine is None:
            raise invalid("BULK mode in target size policy requires a machine type with TPUs.")
        action = row["instanceLifecyclePolicy"]["defaultActionOnFailure"]
        if is_bulk and is_flex_start and action != "DO_NOTHING":
            field = "resource.instanceLifecyclePolicy.defaultActionOnFailure"
            raise bad_field(field, action, "Must be DO_NOTHING in BULK mode with FLEX_START.")
        topology = topology_of(self.context, row)
        if not topology or machine is None:
            return
        if is_flex_start and not is_bulk:
            raise invalid(
                "MIGs with TPU accelerator topology require BULK mode in target size policy"
            )
        hosts = math.prod(map(int, topology.split("x"))) // machine.chips
        if row["targetSize"] not in (0, hosts):
            reason = (
                f"The accelerator topology {topology} of {machine.name} requires {hosts} instances."
            )
            raise bad_field("resource.targetSize", str(row["targetSize"]), reason)

    def _project_in(self, link: str, default: str) -> str:
        match = re.search(r"projects/([^/]+)/", link)
        return self.context.project(match[1]) if match else default

    def finish_insert(self, arguments: Arguments) -> None:
        super().finish_insert(arguments)
        self._work.wake(arguments["target"])

    def finish_patch(self, arguments: Arguments) -> None:
        super().finish_patch(arguments)
        self._work.wake(arguments["target"])

    # Changes.

    @idempotent
    async def resize(self, name: str, request: Any, caller: Caller) -> Any:
        self._require_changeable(name)
        with self.store.transaction():
            self._resize(name, request.size)
            return self._begin_change("resize", name, caller, request.request_id)

    def _resize(self, name: str, size: int) -> None:
        row = self.require(name)
        _check_size(size)
        self._check_slice({**row, "targetSize": size})
        staying = [
            entry["name"] for entry in row["managed"] if entry["currentAction"] != "DELETING"
        ]
        if row["targetSizePolicy"]["mode"] == "BULK" and 0 < len(staying) < size:
            # docs.cloud.google.com/compute/docs/instance-groups/about-bulk-mode
            raise invalid("A group in BULK mode can be enlarged only from size 0.")
        managed = _with_action(row["managed"], staying[size:], "DELETING")
        created = _new_entries(row["baseInstanceName"], size - len(staying), names_of(row))
        self._save_managed(name, [*managed, *created], size)

    @idempotent
    async def patch(self, name: str, request: Any, caller: Caller) -> Any:
        """Change the template, policies, and size; existing instances keep their template."""
        row = self._require_changeable(name)
        changes = as_row(request.instance_group_manager_resource)
        merged = {
            field: {**row[field], **value} if isinstance(value, dict) and field in row else value
            for field, value in changes.items()
        }
        if "versions" in changes:
            merged.setdefault("instanceTemplate", "")  # the version's
        complete = self.complete(name, {**row, **merged})
        with self.store.transaction():
            if complete["targetSize"] != row["targetSize"]:
                self._resize(name, complete["targetSize"])
            changed = {field: complete[field] for field in merged if field in complete}
            return self.begin("patch", name, caller, {"row": changed}, request.request_id)

    @idempotent
    async def delete_instances(self, name: str, request: Any, caller: Caller) -> Any:
        """Delete these instances, and reduce the size by their number."""
        row = self._require_changeable(name)
        body = as_row(request.instance_group_managers_delete_instances_request_resource)
        leaving = _members(name, row, body.get("instances", []))
        size = row["targetSize"] - len(leaving)
        self._check_slice({**row, "targetSize": size})
        with self.store.transaction():
            self._save_managed(name, _with_action(row["managed"], leaving, "DELETING"), size)
            return self._begin_change("deleteInstances", name, caller, request.request_id)

    @idempotent
    async def recreate_instances(self, name: str, request: Any, caller: Caller) -> Any:
        """Delete these instances, and create them again with the same names: of a slice, all."""
        row = self._require_changeable(name)
        body = as_row(request.instance_group_managers_recreate_instances_request_resource)
        members = _members(name, row, body.get("instances", []))
        with self.store.transaction():
            self._work.recreate(name, members)
            return self._begin_change("recreateInstances", name, caller, request.request_id)

    def enlarge(self, name: str, count: int, request: str) -> None:
        """Add instances for a resize request."""
        row = self.require(name)
        created = _new_entries(row["baseInstanceName"], count, names_of(row))
        managed = [*row["managed"], *({**entry, "request": request} for entry in created)]
        self._save_managed(name, managed, row["targetSize"] + count)
        self._work.wake(name)

    def drop_request(self, name: str, request: str) -> None:
        """Remove the instances that a resize request still waits for."""
        row = self.require(name)
        waiting = [entry["name"] for entry in row["managed"] if entry.get("request") == request]
        managed = _with_action(row["managed"], waiting, "DELETING")
        self._save_managed(name, managed, row["targetSize"] - len(waiting))
        self._work.wake(name)

    def finish_delete(self, arguments: Arguments) -> None:
        super().finish_delete(arguments)
        for request in self.context.names(RESIZE_REQUESTS, f"{arguments['target']}/"):
            self.store.delete(RESIZE_REQUESTS, request)

    def preempted_with(self, name: str) -> list[str]:
        """The running instances that are preempted with an instance, or with a group.

        Those of a slice together: without one of them, the others cannot work.
        """
        group = name if "/instanceGroupManagers/" in name else self._work.group_of(name)
        row = None if group is None else self.find(group)
        if group is None or row is None:
            return [name]
        if name != group and not topology_of(self.context, row):
            return [name]
        members = [instance_name(group, member) for member in names_of(row)]
        return [member for member in members if self._instances.is_running(member)]

    @idempotent
    async def delete(self, name: str, request: Any, caller: Caller) -> Any:
        row = self._require_changeable(name)
        with self.store.transaction():
            managed = _with_action(row["managed"], names_of(row), "DELETING")
            self.store.put_json(self.kind, name, {**row, "managed": managed, "deleting": True})
            return self.begin("delete", name, caller, {}, request.request_id)

    def operation_type(self, verb: str, arguments: Arguments) -> str:
        return f"{self.kind}.{verb}"

    def _require_changeable(self, name: str) -> Row:
        row = self.require(name)
        if row.get("deleting"):
            raise not_ready(name)
        return row

    def _begin_change(self, verb: str, name: str, caller: Caller, request_id: str) -> Any:
        self._work.wake(name)
        return self.begin(verb, name, caller, {}, request_id)

    def _save_managed(self, name: str, managed: Rows, size: int) -> None:
        row = {**self.require(name), "managed": managed, "targetSize": size}
        self.store.put_json(self.kind, name, row)

    async def _delete_instances(self, arguments: Arguments, report: Callable[[str], None]) -> None:
        await self._work.delete_all(arguments["target"])

    # Reading.

    async def list_managed_instances(self, request: Any, caller: Caller) -> Any:
        name = self.name_of(request)
        row = self.require(name)
        rows = [self._managed_instance(name, row, entry) for entry in row["managed"]]
        selected = [entry for entry in rows if matches(entry, request.filter)]
        answer = {"managedInstances": selected}
        return message_of("InstanceGroupManagersListManagedInstancesResponse", answer)

    def _managed_instance(self, name: str, row: Row, entry: Row) -> Row:
        full = instance_name(name, entry["name"])
        instance = self._instances.find(full)
        shown: Row = {
            "name": entry["name"],
            "instance": LINK + full,
            "currentAction": entry["currentAction"],
            "targetStatus": "DELETED" if entry["currentAction"] == "DELETING" else "RUNNING",
            "version": {"instanceTemplate": LINK + row["instanceTemplate"]},
        }
        if instance is not None:
            shown |= {"id": instance["id"], "instanceStatus": instance["status"]}
        if entry.get("errors"):
            shown["lastAttempt"] = {"errors": {"errors": entry["errors"]}}
        return shown

    async def list_errors(self, request: Any, caller: Caller) -> Any:
        row = self.require(self.name_of(request))
        items = [error for error in row["errors"] if matches(error, request.filter)]
        return message_of("InstanceGroupManagersListErrorsResponse", {"items": items})


def _check_size(size: int) -> None:
    if not 0 <= size <= _MAX_SIZE:
        raise bad_field("resource.targetSize", str(size), f"Must be from 0 to {_MAX_SIZE}.")


def _new_entries(base: str, count: int, existing: Iterable[str]) -> Rows:
    """Entries of instances to create: the group's base name with a random suffix.

    By name, as a slice's workers are numbered.
    """
    names: set[str] = set()
    while len(names) < count:
        suffix = "".join(secrets.choice(_SUFFIX_CHARACTERS) for _ in range(4))
        names |= {f"{base}-{suffix}"}.difference(existing)
    return [{"name": name, "currentAction": "CREATING"} for name in sorted(names)]


def _with_action(managed: Rows, names: Iterable[str], action: str) -> Rows:
    affected = set(names)
    return [
        {**entry, "currentAction": action} if entry["name"] in affected else entry
        for entry in managed
    ]


def _members(name: str, row: Row, links: Iterable[str]) -> list[str]:
    """The names of the instances at these links, which must be the group's."""
    managed = set(names_of(row))
    members = [link.rpartition("/")[2] for link in links]
    for link, member in zip(links, members, strict=True):
        if member not in managed:
            reason = f"The instance is not a member of '{name}'."
            raise bad_field("instances", link, reason)
    return members
