"""Resource policies: workload policies, which shape the instances of a managed group."""

from __future__ import annotations

import re

from tpuctl.emulator.compute.core.collection import Collection, Row
from tpuctl.emulator.compute.core.context import INSTANCE_GROUP_MANAGERS
from tpuctl.emulator.compute.core.errors import bad_field, failed_in_use
from tpuctl.emulator.state.errors import invalid

_POLICIES = (
    *("diskConsistencyGroupPolicy", "groupPlacementPolicy", "instanceSchedulePolicy"),
    *("snapshotSchedulePolicy", "workloadPolicy"),
)
_TYPES = ("HIGH_AVAILABILITY", "HIGH_THROUGHPUT")
_TOPOLOGY = re.compile(r"[1-9]\d*(?:x[1-9]\d*){1,2}")


class ResourcePolicies(Collection):
    """Policies of a region. Of their kinds only workload policies are emulated."""

    kind, message, plural = "compute.resourcePolicies", "ResourcePolicy", "resourcePolicies"
    field, scope = "resource_policy", "regions"

    def complete(self, name: str, row: Row) -> Row:
        kinds = [kind for kind in _POLICIES if kind in row]
        if len(kinds) != 1:
            raise invalid("Exactly one policy must be specified in a resource policy.")
        if kinds != ["workloadPolicy"]:
            raise invalid("Only workload policies are emulated.")
        policy = row["workloadPolicy"]
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
        return {**row, "region": name.split("/")[3], "status": "READY"}

    def check_deletion(self, name: str) -> None:
        for user, manager in self.context.items(
            INSTANCE_GROUP_MANAGERS, f"projects/{name.split('/')[1]}/"
        ):
            if manager.get("resourcePolicies", {}).get("workloadPolicy") == name:
                raise failed_in_use("resource_policy", name, user)
