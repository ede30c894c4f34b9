"""Required permissions of a request, and the resources whose policies grant them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from tpuctl.emulator.state.projects import Directory
from tpuctl.emulator.state.store import Store

ACT_AS = "iam.serviceAccounts.actAs"

_ACCOUNTS, _DELETED = "account", "account-deleted"  # kinds in the store
_NUMBERED = re.compile(r"(?:service-)?([0-9]+)(?:-compute)?@")
_OWNED = re.compile(r"[^@]+@([^@.]+)\.iam\.gserviceaccount\.com")


@dataclass(frozen=True)
class Need:
    """A required permission. Errors and conditions use `resource_name`."""

    permission: str
    resource: str  # holds the policy
    resource_name: str
    kind: str = ""  # "act-as" for acting as a service account


class PolicyResources:
    """Maps resource names to the resources that hold their policies."""

    def __init__(self, store: Store, projects: Directory) -> None:
        self.store = store
        self._projects = projects

    def resolve(self, name: str) -> str:
        """The project, account, secret, key, bucket, container or billing account, or ""."""
        parts = name.split("/")
        if len(parts) < 2 or not parts[1]:
            return ""
        if parts[0] in ("folders", "organizations", "billingAccounts"):
            return f"{parts[0]}/{parts[1]}"
        if parts[0] != "projects":
            return ""
        if parts[2:3] == ["buckets"] and len(parts) > 3:
            exists = self.store.get("bucket", parts[3]) is not None
            return f"buckets/{parts[3]}" if exists else ""
        if parts[2:3] == ["serviceAccounts"] and len(parts) > 3:
            return self.account(parts[3], parts[1])
        if parts[2:3] == ["secrets"] and len(parts) > 3:
            return f"{self.project(parts[1])}/secrets/{parts[3]}"
        if parts[4:5] == ["keyRings"] and len(parts) > 5:  # a key ring, or a key
            return "/".join([self.project(parts[1]), *parts[2:8]])
        return self.project(parts[1])

    def project(self, name: str) -> str:
        """By ID or number; a missing project keeps the requested name."""
        record = self._projects.find(name)
        return f"projects/{record['id'] if record else name}"

    def account(self, key: str, project: str = "-") -> str:
        """A service account by email or unique ID, under the project it belongs to."""
        if "@" not in key:
            accounts = [*self.store.list_json(_ACCOUNTS), *self.store.list_json(_DELETED)]
            matching = [account for account in accounts if account["unique_id"] == key]
            return str(matching[0]["name"]) if matching else self.project(project)
        numbered, owned = _NUMBERED.match(key), _OWNED.fullmatch(key)
        if numbered is not None:
            project = numbered[1]
        elif owned is not None:
            project = owned[1]
        return f"{self.project(project)}/serviceAccounts/{key}"

    def default_account(self, project: str) -> str:
        """The email of the project's default service account."""
        record = self._projects.find(project)
        number = record["number"] if record else project
        return f"{number}-compute@developer.gserviceaccount.com"

    def act_as(self, email: str, project: str = "") -> Need:
        """actAs on an account; "" and "default" mean the project's default one."""
        email = self.default_account(project) if email in ("", "default") else email
        return Need(ACT_AS, self.account(email), email, "act-as")

    def is_local(self, project: str) -> bool:
        """Whether it is a project of this cloud rather than one of Google's public ones."""
        return self._projects.find(project) is not None


def text_at(request: Any, path: str) -> str:
    """A string field of a message by path, "" if missing."""
    for name in path.split("."):
        if name not in request.DESCRIPTOR.fields_by_name:
            return ""
        request = getattr(request, name)
        if isinstance(request, str):
            return request
    return ""
