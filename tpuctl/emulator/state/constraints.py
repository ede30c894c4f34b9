"""Organization policies: constraints that are set on a project or above it, and what they forbid.

How policies of a project, its folders and its organization come together is from
cloud.google.com/resource-manager/docs/organization-policy/understanding-hierarchy. Rules with
conditions and dry runs are not imitated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tpuctl.catalog import region_of, zones
from tpuctl.emulator.state.projects import FOLDER, ORGANIZATION, Directory
from tpuctl.emulator.state.settings import Settings
from tpuctl.emulator.state.store import Store

__all__ = ["CONSTRAINTS", "KIND", "OrgPolicies", "Rule"]

Rule = dict[str, Any]  # one of enforce, allow_all, deny_all, or allowed and denied

KIND = "org-policy"  # of the store, by `projects/P/policies/CONSTRAINT`
# cloud.google.com/resource-manager/docs/organization-policy/org-policy-constraints: those that
# matter here, and whether each is a list.
CONSTRAINTS: Mapping[str, bool] = {
    "compute.requireOsLogin": False,
    "compute.requireShieldedVm": False,
    "compute.skipDefaultNetworkCreation": False,
    "compute.vmExternalIpAccess": True,
    "gcp.resourceLocations": True,
    "iam.allowedPolicyMemberDomains": True,
    "iam.automaticIamGrantsForDefaultServiceAccounts": False,
    "iam.disableServiceAccountCreation": False,
    "iam.disableServiceAccountKeyCreation": False,
    "storage.publicAccessPrevention": False,
    "storage.uniformBucketLevelAccess": False,
}
_GROUP = re.compile(r"in:([a-z0-9-]+)-locations")


class OrgPolicies:
    """What is set where, and what follows from it. The settings' switch is set at the top."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._settings = Settings(store)
        self._projects = Directory(store)

    def effective(self, resource: str, constraint: str) -> list[Rule]:
        """The rules in force for a project, folder or organization; the default where none is."""
        is_list = CONSTRAINTS.get(constraint, False)
        rules: list[Rule] = []
        for each in self._upwards(resource):
            policy = self._store.get_json(KIND, f"{each}/policies/{constraint}")
            if policy is None:
                continue
            if policy["reset"]:
                break
            rules += policy["rules"]
            if not (is_list and policy["inherits"]):
                break
        else:
            if constraint in self._settings.get("policies"):
                rules.append({"deny_all": True} if is_list else {"enforce": True})
        return [_merged(rules)] if is_list else rules[:1] or [{"enforce": False}]

    def is_enforced(self, resource: str, constraint: str) -> bool:
        """Whether it is in force for what belongs there; of a list, whatever it allows."""
        (rule,) = self.effective(self._owner(resource), constraint)
        return bool(rule.get("enforce")) or (
            CONSTRAINTS.get(constraint, False) and not rule.get("allow_all")
        )

    def allows(self, resource: str, constraint: str, value: str) -> bool:
        """Whether a list constraint lets a value be."""
        (rule,) = self.effective(self._owner(resource), constraint)
        if rule.get("deny_all") or any(_covers(one, value) for one in rule.get("denied", ())):
            return False
        allowed = rule.get("allowed", ())
        return not allowed or any(_covers(one, value) for one in allowed)

    def _owner(self, resource: str) -> str:
        """The project, folder or organization of what has a policy of its own."""
        kind, _, name = resource.partition("/")
        if kind == "buckets":
            bucket = self._store.get_json("bucket", name) or {}
            name = str(bucket.get("projectNumber", ""))
        elif kind != "projects":
            return resource if resource in (FOLDER, ORGANIZATION) else ORGANIZATION
        project = self._projects.find(name.partition("/")[0])
        return f"projects/{project['id']}" if project else ORGANIZATION

    def _upwards(self, resource: str) -> Iterator[str]:
        yield resource
        if resource.startswith("projects/"):
            project = self._projects.find(resource.partition("/")[2])
            parent = str(project["parent"]) if project else ""
            if parent:
                yield from self._upwards(parent)
        elif resource == FOLDER:
            yield ORGANIZATION


def _merged(rules: list[Rule]) -> Rule:
    """Denying everything goes before, allowing everything behind any values."""
    if any(rule.get("deny_all") for rule in rules):
        return {"deny_all": True}
    allowed = sorted({one for rule in rules for one in rule.get("allowed", ())})
    denied = sorted({one for rule in rules for one in rule.get("denied", ())})
    if not allowed and not denied:
        return {"allow_all": True}
    return {"allowed": allowed, "denied": denied}


def _covers(entry: str, value: str) -> bool:
    """Whether an entry stands for a value: exactly, or as a group of locations.

    cloud.google.com/resource-manager/docs/organization-policy/defining-locations: a group has the
    region, its zones, or all of a part of the world.
    """
    group = _GROUP.fullmatch(entry)
    if group is None:
        return entry.removeprefix("is:") == value
    name = "europe" if group[1] == "eu" else group[1]
    places = {value, region_of(value)} if value in zones() else {value}
    return any(place == name or place.startswith(f"{name}-") for place in places) or (
        value == group[1]
    )
