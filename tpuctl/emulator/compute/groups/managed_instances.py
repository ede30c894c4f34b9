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
from dataclasses import dataclass, replace
from typing import Any

from tpuctl.emulator.compute.core.collection import Row, Rows
from tpuctl.emulator.compute.core.context import (
    INSTANCE_GROUP_MANAGERS,
    RESIZE_REQUESTS,
    RESOURCE_POLICIES,
    ComputeContext,
)
from tpuctl.emulator.compute.core.messages import LINK
from tpuctl.emulator.compute.core.operation_resource import show
from tpuctl.emulator.compute.instances.capacity import stockout
from tpuctl.emulator.compute.instances.instance_spec import draft
from tpuctl.emulator.compute.instances.instance_templates import find_template, instance_body
from tpuctl.emulator.compute.instances.instances import Instances
from tpuctl.emulator.state.errors import ApiError
from tpuctl.emulator.state.operations import Record
from tpuctl.emulator.state.pacific_time import pacific_text
from tpuctl.emulator.wire.registry import Caller

log = logging.getLogger(__name__)

_MAX_ERRORS = 100  # of a group, the newest
_MIN_RETRY_SECONDS = 0.2
_STAYING = ("CREATING", "RECREATING", "NONE")


def instance_name(group: str, instance_id: str) -> str:
    """The full name of a group's instance."""
    return f"{group.partition('/instanceGroupManagers/')[0]}/instances/{instance_id}"


def names_of(row: Row, *actions: str) -> list[str]:
    """The names of a group's instances, or of those with one of these current actions."""
    return [
        entry["name"]
        for entry in row["managed"]
        if not actions or entry["currentAction"] in actions
    ]


def topology_of(context: ComputeContext, row: Row) -> str:
    """The accelerator topology of a group that forms a slice; "" for other groups."""
    name = row.get("resourcePolicies", {}).get("workloadPolicy", "")
    policy = (context.find(RESOURCE_POLICIES, name) or {}).get("workloadPolicy", {})
    return str(policy.get("acceleratorTopology", ""))


@dataclass(frozen=True)
class _Batch:
    """Instances to create: if it is a whole, all of them or none."""

    names: Sequence[str]
    is_whole: bool
    request: str = ""  # the resize request


class ManagedInstances:
    """Brings the instances of each group to what its row says, in one background task a group.

    An entry of a row's `managed` has the instance's `name` and `currentAction`, and possibly
    `errors` (of the last attempt), `request` (the resize request that it waits for), `replaces`
    (the ID of the instance to be recreated), and `failed` (it was preempted, or its time was up).
    """

    def __init__(self, context: ComputeContext, instances: Instances) -> None:
        self._context = context
        self._instances = instances
        self._operations = context.registry.operations
        self._wakes: dict[str, asyncio.Event] = {}  # by group with a running task
        instances.on_end = self._note_end

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
            await self._delete(group, names_of(row))

    def group_of(self, instance: str) -> str | None:
        """The group that manages an instance."""
        base, _, instance_id = instance.partition("/instances/")
        prefix = f"{base}/instanceGroupManagers/"
        for group, row in self._context.items(INSTANCE_GROUP_MANAGERS, prefix):
            if instance_id in names_of(row):
                return group
        return None

    def recreate(self, group: str, names: Iterable[str]) -> None:
        """Plan to delete these instances and to create others with their names: of a slice, all.

        "you can't reschedule individual instances within a slice": docs.cloud.google.com/tpu/docs/
        failure-recovery
        """
        row = self._find(group)
        assert row is not None, "its instances have just been read from it"
        affected = set(names_of(row) if topology_of(self._context, row) else names)
        for entry in row["managed"]:
            if entry["name"] in affected:
                instance = self._instance(group, entry["name"])
                entry["currentAction"] = "RECREATING"
                entry["replaces"] = "" if instance is None else instance["id"]
        self._save(group, row)

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
        row = self._current(group)
        if row is None:
            return True
        leaving = names_of(row, "DELETING")
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
        row = self._current(group)
        return row is None or set(names_of(row)) == set(names_of(row, "NONE"))

    # Repairs.

    def _note_end(self, instance: str, cause: str) -> None:
        """Those that ran for as long as they may leave the group, if they are deleted then."""
        group = self.group_of(instance)
        row = None if group is None else self._current(group)
        if group is None or row is None:
            return
        instance_id = instance.rpartition("/")[2]
        if cause == "timeUp" and self._instances.find(instance) is None:
            self._save(group, {**row, "targetSize": row["targetSize"] - 1})
            self._remove_entries(group, [instance_id])
        elif cause:
            self._change_entries(group, [instance_id], failed=True)
        self.wake(group)

    def _repair(self, group: str) -> None:
        """Plan to recreate instances that were lost.

        Those that others deleted are always recreated, preempted and stopped ones only if the group
        repairs failures.
        """
        row = self._current(group)
        if row is None:
            return
        repairs = row["instanceLifecyclePolicy"]["defaultActionOnFailure"] == "REPAIR"
        lost = []
        for entry in row["managed"]:
            instance = self._instance(group, entry["name"])
            is_lost = instance is None or instance["status"] == "TERMINATED"
            is_failure = entry.get("failed") or instance is not None
            if entry["currentAction"] == "NONE" and is_lost and (repairs or not is_failure):
                lost.append(entry["name"])
        if lost:
            self.recreate(group, lost)

    # Creation.

    def _batches(self, group: str) -> list[_Batch]:
        """The instances to create: those of a slice and of a resize request together."""
        row = self._current(group)
        if row is None or not (creating := names_of(row, "CREATING", "RECREATING")):
            return []
        if topology_of(self._context, row):
            return [_Batch(names_of(row, *_STAYING), is_whole=True)]
        requests: dict[str, list[str]] = {}
        for entry in row["managed"]:
            if entry["name"] in creating:
                requests.setdefault(entry.get("request", ""), []).append(entry["name"])
        is_bulk = row["targetSizePolicy"]["mode"] == "BULK"
        return [
            _Batch(names, is_whole=bool(request) or is_bulk, request=request)
            for request, names in requests.items()
        ]

    async def _create(self, group: str, batch: _Batch) -> None:
        """Create what is missing, and wait for it. Of an incomplete whole nothing remains."""
        row, names = self._current(group), batch.names
        if row is None:
            return
        missing = [name for name in names if self._instance(group, name) is None]
        partial = self._partial(group, row, len(names) - len(missing)) if missing else None
        if partial is not None:
            error, count = partial
            self._record_error(group, missing[count:], error)
            missing = missing[:count]
        elif batch.is_whole and missing and len(missing) < len(names):
            await self._delete(group, [name for name in names if name not in missing])
            missing = list(names)
        refusal = None
        if missing:
            min_count = len(missing) if batch.is_whole else 1
            refusal = await self._insert(group, row, missing, min_count, batch.request)
            if refusal is not None:
                self._record_error(group, missing, refusal)
        for record in await self._wait_for("insert", group, names):
            if record.error is not None:
                (error,) = show(record)["error"]["errors"]
                self._record_error(group, [record.arguments["target"].rpartition("/")[2]], error)
                refusal = refusal or error
        running = [name for name in names if self._instances.is_running(instance_name(group, name))]
        is_complete = len(running) == len(names)
        if batch.is_whole and partial is None and not is_complete:
            await self._delete(group, running)
        else:
            self._finish_entries(group, running)
        if batch.request:
            self._report_attempt(f"{group}/resizeRequests/{batch.request}", refusal, is_complete)

    def _report_attempt(self, request: str, error: Row | None, is_complete: bool) -> None:
        """Show the result of an attempt at a resize request in it."""
        row = self._context.find(RESIZE_REQUESTS, request)
        if row is None or row["state"] != "ACCEPTED":
            return
        if is_complete:
            row["state"] = "SUCCEEDED"
        elif error is not None:
            summary = {"code": error["code"], "message": error["message"]}
            row["status"] = {"lastAttempt": {"error": {"errors": [summary]}}}
        self._context.store.put_json(RESIZE_REQUESTS, request, row)

    def _partial(self, group: str, row: Row, existing: int) -> tuple[Row, int] | None:
        """If a fault lets the group land in part: the error, and how many more are created."""
        template = self._template(row)
        _, project, _, zone, _, name = group.split("/")
        attributes = {"project": project, "zone": zone, "type": template["machineType"]}
        fault = self._context.registry.faults.take("partial-group", **attributes, name=name)
        if fault is None:
            return None
        return stockout(attributes, ""), max(0, fault.get("number", 1) - existing)

    async def _insert(
        self, group: str, row: Row, names: Sequence[str], min_count: int, request: str
    ) -> Row | None:
        """Begin creating instances: all, or as many as quota allows; the error if not all."""
        topology = topology_of(self._context, row)
        members = [instance_name(group, name) for name in names_of(row, *_STAYING)]
        part = {"slice": {"members": members, "topology": topology}} if topology else {}
        drafts = {}
        refusal: Row | None
        try:
            for name in names:
                full = instance_name(group, name)
                body = self._body(group, row, name, request)
                instance = draft(self._instances.sources, full, body)
                self._check_agent(group, instance.row)
                drafts[full] = replace(instance, row={**instance.row, **part})
            refusal, drafts = self._instances.largest_allowed(drafts, min_count)
            endpoints = await self._instances.reserve(list(drafts))
        except ApiError as error:
            return {"code": "INVALID_USAGE", "message": error.message}
        if self._current(group) is None:
            return None
        with self._context.store.transaction():
            for (full, instance), endpoint in zip(drafts.items(), endpoints, strict=True):
                if self._instances.find(full) is None:
                    caller = self._agent(group)
                    self._instances.begin_insertion(full, instance, endpoint, caller, {})
        return refusal

    def _template(self, row: Row) -> Row:
        """The properties of the group's template."""
        template = find_template(self._context, row["instanceTemplate"])
        assert template is not None, "a template in use cannot be deleted"
        properties: Row = template["properties"]
        return properties

    def _body(self, group: str, row: Row, name: str, request: str) -> Row:
        """The body of the request for an instance."""
        properties = self._template(row)
        _, project, _, zone = group.split("/")[:4]
        owner, number = f"projects/{project}/", f"projects/{self._project_number(project)}/"
        links = {"instance-template": row["instanceTemplate"], "created-by": group}
        items = [
            *properties.get("metadata", {}).get("items", []),
            *({"key": key, "value": link.replace(owner, number)} for key, link in links.items()),
        ]
        resize = self._context.find(RESIZE_REQUESTS, f"{group}/resizeRequests/{request}") or {}
        scheduling = properties.get("scheduling", {})
        if "requestedRunDuration" in resize:
            duration = resize["requestedRunDuration"]
            limit = {"maxRunDuration": duration, "instanceTerminationAction": "DELETE"}
            scheduling = {**scheduling, **limit}
        return {
            **instance_body(properties, zone),
            "name": name,
            "scheduling": scheduling,
            "metadata": {"items": items},
        }

    def _agent(self, group: str) -> Caller:
        """The service agent that creates and deletes the instances of groups.

        docs.cloud.google.com/compute/docs/access/service-accounts, "Google APIs Service Agent"
        """
        number = self._project_number(group.split("/")[1])
        return Caller(f"{number}@cloudservices.gserviceaccount.com")

    def _check_agent(self, group: str, instance: Row) -> None:
        """The agent may use all subnetworks of its project; those of a host project by its roles.

        cloud.google.com/vpc/docs/provisioning-shared-vpc, "Google APIs service account"
        """
        subnetwork = instance["networkInterfaces"][0]["subnetwork"]
        if subnetwork.split("/")[1] == group.split("/")[1]:
            return
        needed = "compute.subnetworks.use"
        authority = self._context.registry.authority
        if not authority.allows(self._agent(group).email, needed, subnetwork):
            text = f"Required '{needed}' permission for '{subnetwork}'"
            raise ApiError("PERMISSION_DENIED", text, reason="forbidden")

    def _project_number(self, project: str) -> str:
        return str(self._context.registry.projects.require(project)["number"])

    # Deletion.

    async def _delete(self, group: str, names: Iterable[str]) -> None:
        names = list(names)
        for name in names:
            instance = self._instance(group, name)
            if instance is not None and not instance.get("deleting"):
                self._instances.begin_deletion(instance_name(group, name), self._agent(group))
        await self._wait_for("delete", group, names)

    async def _wait_for(self, verb: str, group: str, names: Iterable[str]) -> list[Record]:
        """The operations of this kind that are pending on instances, when they have ended."""
        targets = {instance_name(group, name) for name in names}
        return [
            await self._operations.wait(record.name, math.inf)
            for record in self._operations.pending(f"{self._instances.kind}.{verb}")
            if record.arguments["target"] in targets
        ]

    # The group's row.

    def _find(self, group: str) -> Row | None:
        return self._context.find(INSTANCE_GROUP_MANAGERS, group)

    def _current(self, group: str) -> Row | None:
        """The row, unless the group is being deleted."""
        row = self._find(group)
        return None if row is None or row.get("deleting") else row

    def _save(self, group: str, row: Row) -> None:
        self._context.store.put_json(INSTANCE_GROUP_MANAGERS, group, row)

    def _instance(self, group: str, name: str) -> Row | None:
        return self._instances.find(instance_name(group, name))

    def _finish_entries(self, group: str, names: Iterable[str]) -> None:
        row, finished = self._find(group), set(names)
        if row is not None:
            row["managed"] = [
                {"name": entry["name"], "currentAction": "NONE"}
                if entry["name"] in finished and entry["currentAction"] != "DELETING"
                else entry
                for entry in row["managed"]
            ]
            self._save(group, row)

    def _change_entries(self, group: str, names: Iterable[str], **changes: Any) -> None:
        row, affected = self._find(group), set(names)
        if row is not None:
            for entry in row["managed"]:
                if entry["name"] in affected:
                    entry.update(changes)
            self._save(group, row)

    def _remove_entries(self, group: str, names: Iterable[str]) -> None:
        row, removed = self._find(group), set(names)
        if row is not None and removed:
            row["managed"] = [entry for entry in row["managed"] if entry["name"] not in removed]
            self._save(group, row)

    def _record_error(self, group: str, names: Iterable[str], error: Row) -> None:
        """Show an error as that of the instances' last attempt, and among the group's errors."""
        row, affected = self._find(group), set(names)
        if row is None:
            return
        summary = {"code": error["code"], "message": error["message"]}
        details: Rows = [summary]
        if more := error.get("more") or error.get("errorDetails"):
            details = [{**summary, "errorDetails": list(more)}]
        for entry in row["managed"]:
            if entry["name"] in affected:
                entry["errors"] = details
                action = {
                    "action": entry["currentAction"],
                    "instance": LINK + instance_name(group, entry["name"]),
                    "version": {"instanceTemplate": LINK + row["instanceTemplate"]},
                }
                row["errors"].append(
                    {
                        "error": summary,
                        "timestamp": pacific_text(),
                        "instanceActionDetails": action,
                    }
                )
        row["errors"] = row["errors"][-_MAX_ERRORS:]
        self._save(group, row)
