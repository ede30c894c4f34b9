"""Asynchronous replication of disks to another region: what is stored of it. No data is copied.

docs.cloud.google.com/compute/docs/disks/async-pd/configure; the errors' wordings are guesses.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import Any

from tpuctl.emulator.compute.core.collection import Items, LabeledCollection, Row, idempotent
from tpuctl.emulator.compute.core.context import DISKS, RESOURCE_POLICIES, new_id
from tpuctl.emulator.compute.core.errors import bad_field, unknown_reference
from tpuctl.emulator.compute.core.messages import LINK, as_row
from tpuctl.emulator.compute.core.supported_fields import check_supported
from tpuctl.emulator.compute.disks.references import full_disk, full_policy, place_of
from tpuctl.emulator.state.errors import invalid
from tpuctl.emulator.state.locations import region_of_name
from tpuctl.emulator.state.operations import Arguments, Effect
from tpuctl.emulator.wire.registry import Caller

PRIMARY, SECONDARIES = "asyncPrimaryDisk", "asyncSecondaryDisks"
_GROUP = "diskConsistencyGroupPolicy"
_BULK_INSERT = {"sourceConsistencyGroupPolicy": None}


def is_replicated_to(disk: Row) -> bool:
    """Whether a disk is the target of a replication, so that no instance can use it."""
    return _state_of_secondary(disk) == "ACTIVE"


def _state_of_secondary(disk: Row) -> str:
    return str(disk.get("resourceStatus", {}).get(PRIMARY, {}).get("state", ""))


class ReplicatedDisks(LabeledCollection):
    """The part of the collections of disks that pairs them.

    Rows refer to other disks by full name, which `show` turns into links.
    """

    bodies = ""  # what the fields of requests with bodies begin with: "disks"

    def body_of(self, request: Any, name: str) -> Any:
        """The body of a request whose field is named after the collection."""
        return getattr(request, f"{self.bodies}_{name}")

    def verbs(self) -> dict[str, Effect]:
        return {
            **super().verbs(),
            "startAsyncReplication": Effect(self._finish_start),
            "stopAsyncReplication": Effect(self._finish_stop),
            "stopGroupAsyncReplication": Effect(self._finish_stop),
            "bulkInsert": Effect(self._finish_bulk_insert),
        }

    def show(self, name: str, row: Row) -> Row:
        resource = super().show(name, row)
        if PRIMARY in row:
            resource[PRIMARY] = _shown_pair(row[PRIMARY])
        if SECONDARIES in row:
            resource[SECONDARIES] = {
                LINK + disk: {"asyncReplicationDisk": _shown_pair(pair)}
                for disk, pair in row[SECONDARIES].items()
            }
        if status := row.get("resourceStatus", {}):
            secondaries = {LINK + disk: state for disk, state in status[SECONDARIES].items()}
            resource["resourceStatus"] = {**status, SECONDARIES: secondaries}
        return resource

    def with_primary(self, name: str, row: Row) -> Row:
        """The row of a new disk; that of a secondary one with its primary disk."""
        if PRIMARY not in row:
            return row
        field, reference = f"resource.{PRIMARY}.disk", row[PRIMARY].get("disk", "")
        primary = full_disk(place_of(name), reference)
        disk = self.find(primary)
        if disk is None:
            raise unknown_reference(field, reference, "disk")
        if region_of_name(primary) == region_of_name(name):
            raise bad_field(field, reference, "The primary disk must be in another region.")
        if disk["sizeGb"] != row["sizeGb"]:
            reason = f"The size must be that of the primary disk ({disk['sizeGb']} GB)."
            raise bad_field("resource.sizeGb", row["sizeGb"], reason)
        pair = {"disk": primary, "diskId": disk["id"]}
        return {**row, PRIMARY: pair, "resourceStatus": _status(primary_state="CREATED")}

    @idempotent
    async def start_async_replication(self, name: str, request: Any, caller: Caller) -> Any:
        self.require(name)
        body = self.body_of(request, "start_async_replication_request_resource")
        reference = body.async_secondary_disk
        secondary = full_disk(place_of(name), reference)
        disk = self.find(secondary)
        if disk is None:
            raise unknown_reference("asyncSecondaryDisk", reference, "disk")
        if disk.get(PRIMARY, {}).get("disk") != name:
            reason = f"It is not a secondary disk of '{name}'."
            raise bad_field("asyncSecondaryDisk", reference, reason)
        if _state_of_secondary(disk) != "CREATED":
            reason = "Its replication has been started before."
            raise bad_field("asyncSecondaryDisk", reference, reason)
        more = {"secondary": secondary}
        return self.begin("startAsyncReplication", name, caller, more, request.request_id)

    @idempotent
    async def stop_async_replication(self, name: str, request: Any, caller: Caller) -> Any:
        """On the primary disk, or on a secondary one."""
        if not self._active_secondaries(name):
            raise invalid(f"The disk '{name}' is not being replicated.")
        more = {"disks": [name]}
        return self.begin("stopAsyncReplication", name, caller, more, request.request_id)

    @idempotent
    async def stop_group_async_replication(self, base: str, request: Any, caller: Caller) -> Any:
        body = request.disks_stop_group_async_replication_resource_resource
        disks = [name for name, _ in self._group(base, body.resource_policy, "resourcePolicy")]
        if not any(map(self._active_secondaries, disks)):
            reason = "None of its disks is being replicated."
            raise bad_field("resourcePolicy", body.resource_policy, reason)
        more = {"disks": disks}
        return self.begin("stopGroupAsyncReplication", base, caller, more, request.request_id)

    @idempotent
    async def bulk_insert(self, base: str, request: Any, caller: Caller) -> Any:
        """Clones of the secondary disks of a consistency group, as of one moment."""
        body = request.bulk_insert_disk_resource_resource
        check_supported(as_row(body), _BULK_INSERT)
        field, reference = "sourceConsistencyGroupPolicy", body.source_consistency_group_policy
        group = full_policy(f"{base}/", reference)
        clones = {}
        for source, disk in self._group(base, reference, field):
            if PRIMARY not in disk:
                reason = f"The disk '{source}' of the group is not a secondary disk."
                raise bad_field(field, reference, reason)
            clone = f"{source}-{secrets.token_hex(4)}"  # of Google's names nothing is published
            clones[clone] = self._clone(clone, source, disk, group)
        return self.begin("bulkInsert", base, caller, {"disks": clones}, request.request_id)

    def _clone(self, name: str, source: str, disk: Row, group: str) -> Row:
        copied = ("labels", "replicaZones", "sizeGb", "type")
        row = {field: disk[field] for field in copied if field in disk}
        policy = self.context.find(RESOURCE_POLICIES, group) or {}
        return {
            **self.complete(name, {**row, "sourceDisk": source}),
            "name": name.rpartition("/")[2],
            "id": new_id(),
            "sourceConsistencyGroupPolicy": group,
            "sourceConsistencyGroupPolicyId": policy["id"],
        }

    def is_consistency_group(self, policy: str) -> bool:
        return _GROUP in (self.context.find(RESOURCE_POLICIES, policy) or {})

    def _group(self, base: str, reference: str, field: str) -> Items:
        """The disks of a zone or region that are in a consistency group; at least one."""
        policy = full_policy(f"{base}/", reference)
        if not self.is_consistency_group(policy):
            raise unknown_reference(field, reference, "consistency group")
        disks = [
            (name, disk)
            for name, disk in self.items(f"{base}/")
            if policy in disk.get("resourcePolicies", ())
        ]
        if not disks:
            raise bad_field(field, reference, "No disk is in the consistency group.")
        return disks

    def check_not_replicating(self, name: str) -> None:
        if self._active_secondaries(name):
            raise invalid(f"The disk '{name}' is being replicated. Stop the replication first.")

    def _active_secondaries(self, name: str) -> Sequence[str]:
        """The secondary disks that this disk is being replicated to, or itself if it is one."""
        return [disk for disk, _ in self._active_pairs(name)]

    def _active_pairs(self, name: str) -> Iterator[tuple[str, str]]:
        """Secondary and primary disks."""
        row = self.require(name)
        for secondary in row.get(SECONDARIES, {}):
            if is_replicated_to(self.find(secondary) or {}):
                yield secondary, name
        if is_replicated_to(row):
            yield name, row[PRIMARY]["disk"]

    # Effects: finish an operation.

    def _finish_start(self, arguments: Arguments) -> None:
        name, secondary = arguments["target"], arguments["secondary"]
        row, disk = self.require(name), self.require(secondary)
        pair = {"disk": secondary, "diskId": disk["id"], **self._group_of(row)}
        self._save(name, {**row, SECONDARIES: {**row.get(SECONDARIES, {}), secondary: pair}})
        self._save(secondary, {**disk, PRIMARY: {**disk[PRIMARY], **self._group_of(disk)}})
        self._set_state(secondary, name, "ACTIVE")

    def _group_of(self, disk: Row) -> Row:
        """The consistency group that a disk is replicated as a member of."""
        for policy in disk.get("resourcePolicies", ()):
            row = self.context.find(RESOURCE_POLICIES, policy) or {}
            if _GROUP in row:
                return {"consistencyGroupPolicy": policy, "consistencyGroupPolicyId": row["id"]}
        return {}

    def _finish_stop(self, arguments: Arguments) -> None:
        for name in arguments["disks"]:
            for secondary, primary in list(self._active_pairs(name)):
                self._set_state(secondary, primary, "STOPPED")

    def _set_state(self, secondary: str, primary: str, state: str) -> None:
        disk, other = self.require(secondary), self.find(primary)
        status = disk["resourceStatus"]
        self._save(secondary, {**disk, "resourceStatus": {**status, PRIMARY: {"state": state}}})
        if other is not None:
            status = other.get("resourceStatus", _status())
            states = {**status[SECONDARIES], secondary: {"state": state}}
            self._save(primary, {**other, "resourceStatus": {**status, SECONDARIES: states}})

    def _finish_bulk_insert(self, arguments: Arguments) -> None:
        for name, row in arguments["disks"].items():
            self.finish_insert({"target": name, "row": row})

    def _save(self, name: str, row: Row) -> None:
        self.store.put_json(DISKS, name, row)


def _status(primary_state: str = "") -> Row:
    primary = {PRIMARY: {"state": primary_state}} if primary_state else {}
    return {**primary, SECONDARIES: {}}


def _shown_pair(pair: Row) -> Row:
    links = ("disk", "consistencyGroupPolicy")
    return {field: LINK + value if field in links else value for field, value in pair.items()}
