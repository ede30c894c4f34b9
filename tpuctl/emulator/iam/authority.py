"""Authorization: roles that policies grant, from a resource up to its organization."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tpuctl.emulator.faults.fault import Faults
from tpuctl.emulator.faults.traffic import Caller
from tpuctl.emulator.iam.conditions import holds
from tpuctl.emulator.iam.default_bindings import object_bindings, service_agent_bindings
from tpuctl.emulator.iam.policies import ROLES, Policies
from tpuctl.emulator.iam.predefined_roles import check_testable, predefined_roles
from tpuctl.emulator.state.delays import is_over
from tpuctl.emulator.state.members import member_of
from tpuctl.emulator.state.projects import (
    BILLING_ACCOUNTS,
    FOLDER,
    ORGANIZATION,
    Directory,
    Project,
)
from tpuctl.emulator.state.settings import Settings
from tpuctl.emulator.state.store import Store
from tpuctl.local_cloud.defaults import OWNER

# Kinds in the store that grants depend on.
_KINDS = ("policy", "previous-policies", "role", "project", "bucket", "setting")
_CONVENIENCE_ROLES = {
    "projectOwner": "roles/owner",
    "projectEditor": "roles/editor",
    "projectViewer": "roles/viewer",
}
_MAX_CACHED = 2_000


@dataclass(frozen=True)
class _Grant:
    """Permissions of a caller, subject to a condition ("" for none)."""

    permissions: frozenset[str]
    condition: str


class Authority:
    """Authorizes callers for every API. Grants are cached until a policy or role changes."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        projects: Directory,
        agents: Mapping[str, Sequence[tuple[str, str]]],
        faults: Faults,
    ) -> None:
        """`agents` are service agents by API host, as in `ApiAccess.agents`."""
        self._faults = faults
        self._store = store
        self._settings = settings
        self._projects = projects
        self._policies = Policies(store)
        self._agents = agents
        self._version = -1
        self._valid_from = self._valid_until = 0.0
        self._cache: dict[tuple[str, str], tuple[_Grant, ...]] = {}
        self._denied: frozenset[str] = frozenset()

    def allows(
        self,
        email: str,
        permission: str,
        resource: str,
        resource_attributes: Mapping[str, Any] | None = None,
    ) -> bool:
        """Whether a caller has a permission on a resource.

        `resource` holds the policy: a project, folder, organization, `buckets/B`, service account
        or billing account. `resource_attributes` are available to conditions, as `resource.name`.
        The local cloud's owner may do anything except `denied_permissions` of the settings, and
        what a fault takes from them.
        """
        self._refresh()
        if permission in self._denied or self._lacks_role(email, permission):
            return False
        if email == OWNER:
            return True
        attributes: dict[str, Any] = {}
        for grant in self._grants(email, resource):
            if permission not in grant.permissions:
                continue
            if not grant.condition:
                return True
            if not attributes:
                attributes = {"resource.name": "", "resource.type": "", "resource.service": ""}
                attributes |= {**(resource_attributes or {}), "request.time": datetime.now(UTC)}
            if holds(grant.condition, attributes):
                return True
        return False

    def bound(self, email: str, permission: str, bindings: Iterable[Mapping[str, Any]]) -> bool:
        """Whether unconditional bindings that are no policy's grant a caller a permission."""
        return any(
            permission in self._permissions(binding["role"])
            and any(self._is_member(email, member) for member in binding["members"])
            for binding in bindings
        )

    def is_unrestricted(self, email: str) -> bool:
        """Whether a caller may do everything."""
        self._refresh()
        return email == OWNER and not self._denied and not self._faults.pending("missing-role")

    def _lacks_role(self, email: str, permission: str) -> bool:
        """Whether a fault takes from a caller the role that has this permission.

        Most roles also allow to see the project, as any other role would.
        """
        if permission.startswith("resourcemanager.projects."):
            return False
        for role in {str(fault.get("role")) for fault in self._faults.pending("missing-role")}:
            if permission in predefined_roles()[role].permissions and self._faults.take(
                "missing-role", caller=email, role=role
            ):
                return True
        return False

    def granted_permissions(
        self, caller: Caller, resource: str, permissions: Iterable[str]
    ) -> list[str]:
        """The response of `testIamPermissions` for an existing resource."""
        names = list(permissions)
        in_project = resource.startswith(("projects/", "buckets/"))
        check_testable(names, in_project=in_project)
        attributes = _attributes_of(resource)
        return [name for name in names if self.allows(caller.email, name, resource, attributes)]

    def grant_service_agents(self, project: Project, api: str) -> None:
        """Grant an API's service agents their roles when it is first enabled."""
        bindings = service_agent_bindings(self._settings, project, self._agents.get(api, ()))
        if bindings:
            self._policies.add(f"projects/{project['id']}", bindings)

    def _refresh(self) -> None:
        """Clear the cache if it is outdated."""
        version = self._store.version(*_KINDS)
        if version == self._version and not is_over(self._valid_from, self._valid_until):
            return
        self._version, self._valid_until = version, math.inf
        self._valid_from = time.time()
        self._cache.clear()
        self._denied = frozenset(self._settings.get("denied_permissions"))

    def _grants(self, email: str, resource: str) -> tuple[_Grant, ...]:
        grants = self._cache.get((email, resource))
        if grants is None:
            if len(self._cache) >= _MAX_CACHED:
                self._cache.clear()
            chain = self._ancestors(resource)
            grants = tuple(
                grant for ancestor in chain for grant in self._grants_on(email, ancestor)
            )
            self._cache[email, resource] = grants
        return grants

    def _ancestors(self, resource: str) -> Iterator[str]:
        """The resource and the resources it inherits policies from."""
        while resource:
            yield resource
            resource = self._parent(resource)

    def _parent(self, resource: str) -> str:
        kind, _, name = resource.partition("/")
        if kind == "buckets":
            bucket = self._store.get_json("bucket", name) or {}
            project = self._projects.find(str(bucket.get("projectNumber", "")))
            return f"projects/{project['id']}" if project else ""
        if "/cryptoKeys/" in name:
            return resource.partition("/cryptoKeys/")[0]
        if kind == "projects" and "/" in name:
            return f"projects/{name.partition('/')[0]}"
        if kind == "projects":
            project = self._projects.find(name)
            return str(project["parent"]) if project else ""
        return ORGANIZATION if resource == FOLDER or resource in BILLING_ACCOUNTS else ""

    def _bindings(self, resource: str) -> list[dict[str, Any]]:
        bindings, until = self._policies.effective_bindings(resource, time.time())
        self._valid_until = min(self._valid_until, until)
        if resource.startswith("buckets/"):
            return bindings + object_bindings(self._store, resource.partition("/")[2])
        return bindings

    def _grants_on(self, email: str, resource: str) -> Iterator[_Grant]:
        if resource.startswith("projects/") and self._projects.find(resource.split("/")[1]) is None:
            return  # a missing project grants nothing
        for binding in self._bindings(resource):
            if any(self._is_member(email, member) for member in binding["members"]):
                condition = (binding.get("condition") or {}).get("expression", "")
                yield _Grant(self._permissions(binding["role"]), condition)

    def _is_member(self, email: str, member: str) -> bool:
        """Whether a policy member matches the caller. Group membership is unknown here, and deleted
        accounts match no caller."""
        if member in ("allUsers", "allAuthenticatedUsers", member_of(email)):
            return True
        kind, _, rest = member.partition(":")
        if kind == "domain":
            return member_of(email) == f"user:{email}" and email.rpartition("@")[2] == rest
        if kind in _CONVENIENCE_ROLES:
            expected_role, caller_member = _CONVENIENCE_ROLES[kind], member_of(email)
            project = self._projects.find(rest)
            if project is None:
                return False
            bindings, until = self._policies.effective_bindings(
                f"projects/{project['id']}", time.time()
            )
            self._valid_until = min(self._valid_until, until)
            return any(
                binding["role"] == expected_role and caller_member in binding["members"]
                for binding in bindings
            )
        return False

    def _permissions(self, role: str) -> frozenset[str]:
        """Empty for a deleted or unknown role."""
        if role.startswith("roles/"):
            predefined = predefined_roles().get(role)
            return frozenset(predefined.permissions) if predefined else frozenset()
        custom = self._store.get_json(ROLES, role)
        if custom is None or custom["deleted"] or custom["stage"] == _DISABLED:
            return frozenset()
        return frozenset(custom["included_permissions"])


_DISABLED = 5  # google.iam.admin.v1.Role.RoleLaunchStage.DISABLED: "This role is disabled"
_TYPES = {
    "buckets": ("storage.googleapis.com", "storage.googleapis.com/Bucket"),
    "projects": (
        "cloudresourcemanager.googleapis.com",
        "cloudresourcemanager.googleapis.com/Project",
    ),
}


def _attributes_of(resource: str) -> dict[str, str]:
    """Condition attributes of the resource itself."""
    service, kind = _TYPES.get(resource.partition("/")[0], ("", ""))
    name = re.sub(r"^buckets/", "projects/_/buckets/", resource)
    return {"resource.name": name, "resource.service": service, "resource.type": kind}
