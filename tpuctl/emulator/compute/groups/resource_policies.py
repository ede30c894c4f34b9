"""Resource policies: workload policies, which shape the instances of a managed group, and those of
disks: consistency groups, and snapshot schedules, which take no snapshots here."""

from __future__ import annotations

import re

from tpuctl.emulator.compute.core.collection import Collection, Row
from tpuctl.emulator.compute.core.context import DISKS, INSTANCE_GROUP_MANAGERS
from tpuctl.emulator.compute.core.errors import bad_field, failed_in_use
from tpuctl.emulator.state.errors import invalid, unsupported_field

_POLICIES = (
    *("diskConsistencyGroupPolicy", "groupPlacementPolicy", "instanceSchedulePolicy"),
    *("snapshotSchedulePolicy", "workloadPolicy"),
)
_SCHEDULES = ("dailySchedule", "hourlySchedule", "weeklySchedule")
_TYPES = ("HIGH_AVAILABILITY", "HIGH_THROUGHPUT")
_TOPOLOGY = re.compile(r"[1-9]\d*(?:x[1-9]\d*){1,2}")


class ResourcePolicies(Collection):
    """Policies of a region, of three kinds."""

    kind, message, plural = "compute.resourcePolicies", "ResourcePolicy", "resourcePolicies"
    field, scope = "resource_policy", "regions"

    def complete(self, name: str, row: Row) -> Row:
        kinds = [kind for kind in _POLICIES if kind in row]
        if len(kinds) != 1:
            raise invalid("Exactly one policy must be specified in a resource policy.")
        if kinds == ["workloadPolicy"]:
            self._check_workload(row["workloadPolicy"])
        elif kinds == ["snapshotSchedulePolicy"]:
            self._check_schedule(row["snapshotSchedulePolicy"])
        elif kinds != ["diskConsistencyGroupPolicy"]:
            raise unsupported_field(f"resource.{kinds[0]}")
        return {**row, "region": name.split("/")[3], "status": "READY"}

    def _check_schedule(self, policy: Row) -> None:
        """The wording is a guess."""
        if len(set(_SCHEDULES) & policy.get("schedule", {}).keys()) != 1:
            reason = f"Exactly one of {', '.join(_SCHEDULES)} must be specified."
            raise bad_field("resource.snapshotSchedulePolicy.schedule", "", reason)

    def _check_workload(self, policy: Row) -> None:
        place = "resource.workloadPolicy"
        if policy.get("type") not in _TYPES:
            reason = f"Must be one of {', '.join(_TYPES)}."
            raise bad_field(f"{place}.type", policy.get("type", ""), reason)
        topology = policy.get("acceleratorTopology", "")
        if topology and not _TOPOLOGY.fullmatch(topology):
            reason = "Must have the form AxB or AxBxC."
            raise bad_field(f"{place}.acceleratorTopology", topology, reason)
        if topology and "maxTopologyDistance" in policy:
            reason = "Cannot be combined with an accelerator topology."
            raise bad_field(f"{place}.maxTopologyDistance", policy["maxTopologyDistance"], reason)

    def check_deletion(self, name: str) -> None:
        for user, manager in self.context.items(
            INSTANCE_GROUP_MANAGERS, f"projects/{name.split('/')[1]}/"
        ):
            if manager.get("resourcePolicies", {}).get("workloadPolicy") == name:
                raise failed_in_use("resource_policy", name, user)
        for user, disk in self.context.items(DISKS, f"projects/{name.split('/')[1]}/"):
            if name in disk.get("resourcePolicies", ()):
                raise failed_in_use("resource_policy", name, user)
