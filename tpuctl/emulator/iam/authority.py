"""Who may do what: roles that policies grant, from a resource up to its organization."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tpuctl.emulator.faults.traffic import Caller
from tpuctl.emulator.iam.conditions import holds
from tpuctl.emulator.iam.default_bindings import agents_of, object_bindings
from tpuctl.emulator.iam.policies import ROLES, Policies
from tpuctl.emulator.iam.predefined_roles import check_asked, predefined_roles
from tpuctl.emulator.state.members import member_of
from tpuctl.emulator.state.projects import (
    BILLING_ACCOUNTS,
    FOLDER,
    ORGANIZATION,
    OWNER,
    Directory,
    Project,
)
from tpuctl.emulator.state.settings import Settings
from tpuctl.emulator.state.store import Store

__all__ = ["Authority"]

# What grants depend on, by the kinds of the store.
_KINDS = ("policy", "policy-former", "role", "project", "bucket", "setting")
_CONVENIENT = {
    "projectOwner": "roles/owner",
    "projectEditor": "roles/editor",
    "projectViewer": "roles/viewer",
}
_MOST_KEPT = 2_000


@dataclass(frozen=True)
class _Grant:
    """Permissions that a caller has, as long as the condition holds ("" for none)."""

    permissions: frozenset[str]
    condition: str


class Authority:
    """Answers for every API. Its answers are kept until something changes that they hang on."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        projects: Directory,
        agents: Mapping[str, Sequence[tuple[str, str]]],
    ) -> None:
        """`agents` are Google's accounts by the host of their API, as `ApiAccess` has them."""
        self._store = store
        self._settings = settings
        self._projects = projects
        self._policies = Policies(store)
        self._agents = agents
        self._version = -1
        self._until = 0.0
        self._kept: dict[tuple[str, str], tuple[_Grant, ...]] = {}
        self._denied: frozenset[str] = frozenset()

    def allows(
        self, email: str, permission: str, resource: str, facts: Mapping[str, Any] | None = None
    ) -> bool:
        """Whether a caller may; `facts` are what conditions may ask about, as `resource.name`.

        `resource` is what has the policy: a project, folder, organization, `buckets/B`, an account
        or a billing account. The local cloud's owner may do all but what the settings deny.
        """
        self._look()
        if permission in self._denied:
            return False
        if email == OWNER:
            return True
        known: dict[str, Any] = {}
        for grant in self._grants(email, resource):
            if permission not in grant.permissions:
                continue
            if not grant.condition:
                return True
            if not known:
                known = {"resource.name": "", "resource.type": "", "resource.service": ""}
                known |= {**(facts or {}), "request.time": datetime.now(UTC)}
            if holds(grant.condition, known):
                return True
        return False

    def is_limitless(self, email: str) -> bool:
        """Whether a caller may do everything, whatever it is."""
        self._look()
        return email == OWNER and not self._denied

    def granted(self, caller: Caller, resource: str, asked: Iterable[str]) -> list[str]:
        """What `testIamPermissions` answers, of a resource that is there."""
        names = list(asked)
        is_below = resource.startswith(("projects/", "buckets/"))
        check_asked(names, in_project=is_below)
        facts = _facts_of(resource)
        return [name for name in names if self.allows(caller.email, name, resource, facts)]

    def greet(self, project: Project, api: str) -> None:
        """An API is enabled for the first time: Google's accounts for it get their roles."""
        bindings = agents_of(self._settings, project, self._agents.get(api, ()))
        if bindings:
            self._policies.add(f"projects/{project['id']}", bindings)

    def _look(self) -> None:
        """Forget what is kept when it may be true no more."""
        version = self._store.version(*_KINDS)
        if version == self._version and time.time() < self._until:
            return
        self._version, self._until = version, math.inf
        self._kept.clear()
        self._denied = frozenset(self._settings.get("denied_permissions"))

    def _grants(self, email: str, resource: str) -> tuple[_Grant, ...]:
        found = self._kept.get((email, resource))
        if found is None:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            chain = self._upwards(resource)
            found = tuple(grant for each in chain for grant in self._on(email, each))
            self._kept[email, resource] = found
        return found

    def _upwards(self, resource: str) -> Iterator[str]:
        """The resource and all that its policy is inherited from."""
        while resource:
            yield resource
            resource = self._parent(resource)

    def _parent(self, resource: str) -> str:
        kind, _, name = resource.partition("/")
        if kind == "buckets":
            bucket = self._store.get_json("bucket", name) or {}
            project = self._projects.find(str(bucket.get("projectNumber", "")))
            return f"projects/{project['id']}" if project else ""
        if kind == "projects" and "/" in name:
            return f"projects/{name.partition('/')[0]}"
        if kind == "projects":
            project = self._projects.find(name)
            return str(project["parent"]) if project else ""
        return ORGANIZATION if resource == FOLDER or resource in BILLING_ACCOUNTS else ""

    def _bindings(self, resource: str) -> list[dict[str, Any]]:
        bindings, until = self._policies.in_force(resource, time.time())
        self._until = min(self._until, until)
        if resource.startswith("buckets/"):
            return bindings + object_bindings(self._store, resource.partition("/")[2])
        return bindings

    def _on(self, email: str, resource: str) -> Iterator[_Grant]:
        if resource.startswith("projects/") and self._projects.find(resource.split("/")[1]) is None:
            return  # nobody has anything on what is not there
        for binding in self._bindings(resource):
            if any(self._is(email, member) for member in binding["members"]):
                condition = (binding.get("condition") or {}).get("expression", "")
                yield _Grant(self._permissions(binding["role"]), condition)

    def _is(self, email: str, member: str) -> bool:
        """Whether a policy's member stands for this caller. Who is in a group nobody knows here,
        and a deleted account is nobody."""
        if member in ("allUsers", "allAuthenticatedUsers", member_of(email)):
            return True
        kind, _, rest = member.partition(":")
        if kind == "domain":
            return member_of(email) == f"user:{email}" and email.rpartition("@")[2] == rest
        if kind in _CONVENIENT:
            wanted, own = _CONVENIENT[kind], member_of(email)
            project = self._projects.find(rest)
            if project is None:
                return False
            bindings, until = self._policies.in_force(f"projects/{project['id']}", time.time())
            self._until = min(self._until, until)
            return any(one["role"] == wanted and own in one["members"] for one in bindings)
        return False

    def _permissions(self, role: str) -> frozenset[str]:
        """Of a role that is deleted, or not known here, none."""
        if role.startswith("roles/"):
            found = predefined_roles().get(role)
            return frozenset(found.permissions) if found else frozenset()
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


def _facts_of(resource: str) -> dict[str, str]:
    """What conditions may ask about a resource itself."""
    service, kind = _TYPES.get(resource.partition("/")[0], ("", ""))
    name = re.sub(r"^buckets/", "projects/_/buckets/", resource)
    return {"resource.name": name, "resource.service": service, "resource.type": kind}
