"""The work of managed instance groups: create, repair and delete their instances.

A group's row says what its instances should be. Each round of work compares that with the instances
that exist, so that it may be interrupted anywhere, and begun again by the next process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Iterable, Sequence
from typing import Any

from tpuctl.emulator.compute.collection import Row, Rows
from tpuctl.emulator.compute.context import (
    INSTANCE_GROUP_MANAGERS,
    INSTANCE_TEMPLATES,
    REGION_INSTANCE_TEMPLATES,
    RESOURCE_POLICIES,
    ComputeContext,
)
from tpuctl.emulator.compute.instance_spec import draft
from tpuctl.emulator.compute.instances import Instances
from tpuctl.emulator.compute.messages import LINK
from tpuctl.emulator.compute.operation_resource import show
from tpuctl.emulator.state.errors import ApiError
from tpuctl.emulator.state.operations import Record
from tpuctl.emulator.state.pacific_time import pacific_text
from tpuctl.emulator.wire.registry import Caller

__all__ = ["ManagedInstances", "instance_name", "topology_of"]

log = logging.getLogger(__name__)

_MAX_ERRORS = 100  # of a group, the newest
_MIN_RETRY_SECONDS = 0.2
_CREATED_BY = "created-by"  # metadata key of a group's instances
_TEMPLATE = "instance-template"


def instance_name(group: str, instance_id: str) -> str:
    """The full name of a group's instance."""
    return f"{group.partition('/instanceGroupManagers/')[0]}/instances/{instance_id}"


def topology_of(context: ComputeContext, row: Row) -> str:
    """The accelerator topology of a group that forms a slice, else ""."""
    policy = context.find(
        RESOURCE_POLICIES, row.get("resourcePolicies", {}).get("workloadPolicy", "")
    )
    return str((policy or {}).get("workloadPolicy", {}).get("acceleratorTopology", ""))


class ManagedInstances:
    """Brings the instances of each group to what its row says, in one background task a group."""

    def __init__(self, context: ComputeContext, instances: Instances) -> None:
        self._context = context
        self._instances = instances
        self._operations = context.registry.operations
        self._wakes: dict[str, asyncio.Event] = {}  # by group with a running task

    def wake(self, group: str) -> None:
        """Work on a group that has changed."""
        event = self._wakes.get(group)
        if event is not None:
            event.set()
            return
        self._wakes[group] = asyncio.Event()
        self._context.registry.in_background(self._keep(group))

    async def delete_all(self, group: str) -> None:
        """Delete the instances of a group that is being deleted."""
        row = self._find(group)
        if row is not None:
            await self._delete(group, [entry["name"] for entry in row["managed"]])

    async def _keep(self, group: str) -> None:
        event = self._wakes[group]
        pace = self._context.registry.pace
        try:
            while True:
                event.clear()
                try:
                    is_settled = await self._work(group)
                except Exception:
                    log.exception("the instances of %s", group)
                    is_settled = False
                if is_settled and not event.is_set():
                    return
                seconds = pace.seconds(f"{INSTANCE_GROUP_MANAGERS}.retry")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(event.wait(), max(_MIN_RETRY_SECONDS, seconds))
        finally:
            del self._wakes[group]

    async def _work(self, group: str) -> bool:
        """One round: delete, then create. True if nothing is left to do."""
        self._repair(group)
        row = self._find(group)
        if row is None or row.get("deleting"):
            return True
        leaving = _names(row, "DELETING")
        replaced = [
            entry["name"]
            for entry in row["managed"]
            if entry["currentAction"] == "RECREATING"
            and (self._instance(group, entry["name"]) or {}).get("id") == entry["replaces"]
        ]
        await self._delete(group, [*leaving, *replaced])
        self._remove_entries(group, leaving)
        for batch in self._batches(group):
            await self._create(group, batch)
        row = self._find(group)
        return row is None or not _names(row, "CREATING", "RECREATING", "DELETING")

    def _repair(self, group: str) -> None:
        """Plan to recreate the instances that are gone or stopped: of a slice, all of them.

        A slice's instances are recovered together (docs.cloud.google.com/tpu/docs/
        failure-recovery). Without repairs, stopped instances stay so.
        """
        row = self._find(group)
        if row is None or row.get("deleting"):
            return
        failed = [
            name
            for name in _names(row, "NONE")
            if (self._instance(group, name) or {"status": "TERMINATED"})["status"] == "TERMINATED"
        ]
        if not failed or row["instanceLifecyclePolicy"]["defaultActionOnFailure"] != "REPAIR":
            return
        if topology_of(self._context, row):
            failed = _names(row, "NONE", "CREATING", "RECREATING")
        self.recreate(group, failed)

    def recreate(self, group: str, names: Iterable[str]) -> None:
        """Plan to delete these instances and to create others with their names."""
        row = self._find(group)
        assert row is not None, "its instances have just been read from it"
        affected = set(names)
        for entry in row["managed"]:
            if entry["name"] in affected:
                entry["currentAction"] = "RECREATING"
                entry["replaces"] = (self._instance(group, entry["name"]) or {}).get("id", "")
        self._save(group, row)

    # Creation.

    def _batches(self, group: str) -> list[list[str]]:
        """The instances to create, by those that depend on each other."""
        row = self._find(group)
        if row is None or row.get("deleting"):
            return []
        names = _names(row, "CREATING", "RECREATING")
        return [names] if names else []

    async def _create(self, group: str, names: Sequence[str]) -> None:
        """Create what is missing of a batch, and wait for all of it."""
        row = self._find(group)
        if row is None or row.get("deleting"):
            return
        is_slice = bool(topology_of(self._context, row))
        missing = [name for name in names if self._instance(group, name) is None]
        if is_slice and missing and len(missing) < len(names):
            await self._delete(group, [name for name in names if name not in missing])
            missing = list(names)
        if missing:
            refusal = await self._insert(group, row, missing, 1 if not is_slice else len(missing))
            if refusal is not None:
                self._record_error(group, missing, refusal)
        for record in await self._wait_for("insert", group, names):
            if record.error is not None:
                (error,) = show(record)["error"]["errors"]
                self._record_error(group, [record.arguments["target"].rpartition("/")[2]], error)
        running = [
            name for name in names if (self._instance(group, name) or {}).get("status") == "RUNNING"
        ]
        if is_slice and len(running) < len(names):
            await self._delete(group, running)  # of a slice in part, nothing remains
        else:
            self._finish_entries(group, running)

    async def _insert(
        self, group: str, row: Row, names: Sequence[str], min_count: int
    ) -> Any | None:
        """Begin creating instances: all, or as many as quota allows; the error if not all."""
        caller = self._agent(group)
        try:
            drafts = {}
            for name in names:
                full = instance_name(group, name)
                body = self._body(group, row, name)
                drafts[full] = draft(self._instances.sources, full, body)
            refusal, drafts = self._instances.largest_allowed(drafts, min_count)
            if refusal is not None and len(drafts) < min_count:
                return refusal
            endpoints = await self._instances.reserve(list(drafts))
        except ApiError as error:
            return {"code": "INVALID_USAGE", "message": error.message}
        current = self._find(group)
        if current is None or current.get("deleting"):
            return None
        with self._context.store.transaction():
            for (full, instance), endpoint in zip(drafts.items(), endpoints, strict=True):
                if self._instances.find(full) is None:
                    self._instances.begin_insertion(full, instance, endpoint, caller, {})
        return refusal

    def _body(self, group: str, row: Row, name: str) -> Row:
        """The instance as the template describes it."""
        template = row["instanceTemplate"]
        kind = INSTANCE_TEMPLATES if "/global/" in template else REGION_INSTANCE_TEMPLATES
        found = self._context.find(kind, template)
        assert found is not None, "a template in use cannot be deleted"
        properties = found["properties"]
        _, project, _, zone = group.split("/")[:4]
        number = self._project_number(project)
        links = {
            _TEMPLATE: template.replace(f"projects/{project}/", f"projects/{number}/"),
            _CREATED_BY: group.replace(f"projects/{project}/", f"projects/{number}/"),
        }
        items = properties.get("metadata", {}).get("items", [])
        disks = []
        for disk in properties["disks"]:
            params = dict(disk.get("initializeParams", {}))
            if "diskType" in params:  # a name here, a link in an instance (its description)
                params["diskType"] = f"zones/{zone}/diskTypes/{params['diskType']}"
            disks.append({**disk, **({"initializeParams": params} if params else {})})
        return {
            **properties,
            "name": name,
            "machineType": f"zones/{zone}/machineTypes/{properties['machineType']}",
            "disks": disks,
            "metadata": {"items": [*items, *({"key": key, "value": links[key]} for key in links)]},
        }

    def _agent(self, group: str) -> Caller:
        """The service agent that creates and deletes a group's instances.

        docs.cloud.google.com/compute/docs/access/service-accounts, "Google APIs Service Agent"
        """
        number = self._project_number(group.split("/")[1])
        return Caller(f"{number}@cloudservices.gserviceaccount.com")

    def _project_number(self, project: str) -> str:
        return str(self._context.registry.projects.require(project)["number"])

    # Deletion.

    async def _delete(self, group: str, names: Iterable[str]) -> None:
        names = list(names)
        caller = self._agent(group)
        for name in names:
            instance = self._instance(group, name)
            if instance is not None and not instance.get("deleting"):
                self._instances.begin_deletion(instance_name(group, name), caller)
        await self._wait_for("delete", group, names)

    async def _wait_for(self, verb: str, group: str, names: Iterable[str]) -> list[Record]:
        """The finished operations of this kind on instances, after they end."""
        targets = {instance_name(group, name) for name in names}
        return [
            await self._operations.wait(record.name, math.inf)
            for record in self._operations.pending(f"{self._instances.kind}.{verb}")
            if record.arguments["target"] in targets
        ]

    # The group's row.

    def _find(self, group: str) -> Row | None:
        return self._context.find(INSTANCE_GROUP_MANAGERS, group)

    def _save(self, group: str, row: Row) -> None:
        self._context.store.put_json(INSTANCE_GROUP_MANAGERS, group, row)

    def _instance(self, group: str, name: str) -> Row | None:
        return self._instances.find(instance_name(group, name))

    def _finish_entries(self, group: str, names: Iterable[str]) -> None:
        row = self._find(group)
        if row is not None:
            finished = set(names)
            row["managed"] = [
                {"name": entry["name"], "currentAction": "NONE"}
                if entry["name"] in finished and entry["currentAction"] != "DELETING"
                else entry
                for entry in row["managed"]
            ]
            self._save(group, row)

    def _remove_entries(self, group: str, names: Iterable[str]) -> None:
        row = self._find(group)
        gone = set(names)
        if row is not None and gone:
            row["managed"] = [entry for entry in row["managed"] if entry["name"] not in gone]
            self._save(group, row)

    def _record_error(self, group: str, names: Iterable[str], error: Row) -> None:
        """Show an error as that of the instances' last attempt, and among the group's errors."""
        row = self._find(group)
        if row is None:
            return
        affected = set(names)
        details: Rows = [{"code": error["code"], "message": error["message"]}]
        if more := error.get("more") or error.get("errorDetails"):
            details[0]["errorDetails"] = list(more)
        for entry in row["managed"]:
            if entry["name"] in affected:
                entry["errors"] = details
                row["errors"].append(
                    {
                        "error": {"code": error["code"], "message": error["message"]},
                        "timestamp": pacific_text(),
                        "instanceActionDetails": {
                            "action": entry["currentAction"],
                            "instance": LINK + instance_name(group, entry["name"]),
                            "version": {"instanceTemplate": LINK + row["instanceTemplate"]},
                        },
                    }
                )
        row["errors"] = row["errors"][-_MAX_ERRORS:]
        self._save(group, row)


def _names(row: Row, *actions: str) -> list[str]:
    """The names of the managed instances with one of these current actions."""
    return [entry["name"] for entry in row["managed"] if entry["currentAction"] in actions]
