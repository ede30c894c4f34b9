"""Organization policy constraints of projects, folders and the organization.

How policies of a hierarchy are merged is from
cloud.google.com/resource-manager/docs/organization-policy/understanding-hierarchy. Conditional
rules and dry runs are not emulated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tpuctl.catalog import region_of, zones
from tpuctl.emulator.state.projects import FOLDER, ORGANIZATION, Directory
from tpuctl.emulator.state.settings import Settings
from tpuctl.emulator.state.store import Store

Rule = dict[str, Any]  # enforce, allow_all, deny_all, or allowed and denied

KIND = "org-policy"  # kind in the store, by `projects/P/policies/CONSTRAINT`
# cloud.google.com/resource-manager/docs/organization-policy/org-policy-constraints: the relevant
# constraints, and whether each is a list.
CONSTRAINTS: Mapping[str, bool] = {
    "compute.requireOsLogin": False,
    "compute.requireShieldedVm": False,
    "compute.skipDefaultNetworkCreation": False,
    "compute.trustedImageProjects": True,
    "compute.vmExternalIpAccess": True,
    "gcp.resourceLocations": True,
    "gcp.restrictCmekCryptoKeyProjects": True,
    "gcp.restrictNonCmekServices": True,
    "iam.allowedPolicyMemberDomains": True,
    "iam.automaticIamGrantsForDefaultServiceAccounts": False,
    "iam.disableServiceAccountCreation": False,
    "iam.disableServiceAccountKeyCreation": False,
    "iam.disableServiceAccountKeyUpload": False,
    "storage.publicAccessPrevention": False,
    "storage.uniformBucketLevelAccess": False,
}
# Enforced in the organization unless a policy says otherwise, as in those created since May 2024:
# cloud.google.com/resource-manager/docs/secure-by-default-organizations.
_ENFORCED_BY_DEFAULT = (
    "iam.disableServiceAccountKeyCreation",
    "iam.disableServiceAccountKeyUpload",
)
_GROUP = re.compile(r"in:([a-z0-9-]+)-locations")


class OrgPolicies:
    """Effective organization policies. The settings' `policies` apply to the organization."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._settings = Settings(store)
        self._projects = Directory(store)

    def effective(self, resource: str, constraint: str) -> list[Rule]:
        """The rules in force for a project, folder or organization, or the default."""
        is_list = CONSTRAINTS.get(constraint, False)
        rules: list[Rule] = []
        for ancestor in self.ancestors(resource):
            policy = self._store.get_json(KIND, f"{ancestor}/policies/{constraint}")
            if policy is None:
                continue
            if policy["reset"]:
                break
            rules += policy["rules"]
            if not (is_list and policy["inherits"]):
                break
        else:
            if constraint in (*_ENFORCED_BY_DEFAULT, *self._settings.get("policies")):
                rules.append({"deny_all": True} if is_list else {"enforce": True})
        return [_merge(rules)] if is_list else rules[:1] or [{"enforce": False}]

    def is_enforced(self, resource: str, constraint: str) -> bool:
        """Whether the constraint is in force; a list constraint is, unless it allows all."""
        (rule,) = self.effective(self._owner(resource), constraint)
        return bool(rule.get("enforce")) or (
            CONSTRAINTS.get(constraint, False) and not rule.get("allow_all")
        )

    def allows(self, resource: str, constraint: str, value: str) -> bool:
        """Whether a list constraint permits a value."""
        (rule,) = self.effective(self._owner(resource), constraint)
        if rule.get("deny_all") or any(_covers(entry, value) for entry in rule.get("denied", ())):
            return False
        allowed = rule.get("allowed", ())
        return not allowed or any(_covers(entry, value) for entry in allowed)

    def _owner(self, resource: str) -> str:
        """The project, folder or organization of a resource that has a policy."""
        kind, _, name = resource.partition("/")
        if kind == "buckets":
            bucket = self._store.get_json("bucket", name) or {}
            name = str(bucket.get("projectNumber", ""))
        elif kind != "projects":
            return resource if resource in (FOLDER, ORGANIZATION) else ORGANIZATION
        project = self._projects.find(name.partition("/")[0])
        return f"projects/{project['id']}" if project else ORGANIZATION

    def ancestors(self, resource: str) -> Iterator[str]:
        """A project, folder or organization, and what it is in."""
        yield resource
        if resource.startswith("projects/"):
            project = self._projects.find(resource.partition("/")[2])
            parent = str(project["parent"]) if project else ""
            if parent:
                yield from self.ancestors(parent)
        elif resource == FOLDER:
            yield ORGANIZATION


def _merge(rules: list[Rule]) -> Rule:
    """deny_all wins over values, and values win over allow_all."""
    if any(rule.get("deny_all") for rule in rules):
        return {"deny_all": True}
    allowed = sorted({value for rule in rules for value in rule.get("allowed", ())})
    denied = sorted({value for rule in rules for value in rule.get("denied", ())})
    if not allowed and not denied:
        return {"allow_all": True}
    return {"allowed": allowed, "denied": denied}


def _covers(entry: str, value: str) -> bool:
    """Whether a list entry matches a value: exactly, or as a location group.

    cloud.google.com/resource-manager/docs/organization-policy/defining-locations: a group contains
    a region, its zones, or all locations of a continent.
    """
    group = _GROUP.fullmatch(entry)
    if group is None:
        return entry.removeprefix("is:").removeprefix("under:") == value
    name = "europe" if group[1] == "eu" else group[1]
    names = {value, region_of(value)} if value in zones() else {value}
    return any(candidate == name or candidate.startswith(f"{name}-") for candidate in names) or (
        value == group[1]
    )
