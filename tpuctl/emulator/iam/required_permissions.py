"""What a request needs: permissions, each on something that has a policy."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from tpuctl.emulator.state.projects import Directory
from tpuctl.emulator.state.store import Store

__all__ = ["ACT_AS", "Need", "Places", "text_at"]

ACT_AS = "iam.serviceAccounts.actAs"

_ACCOUNTS, _DELETED = "account", "account-deleted"  # kinds of the store
_NUMBERED = re.compile(r"(?:service-)?([0-9]+)(?:-compute)?@")
_OWNED = re.compile(r"[^@]+@([^@.]+)\.iam\.gserviceaccount\.com")


@dataclass(frozen=True)
class Need:
    """A permission on a resource; `told` is how a refusal and conditions name it."""

    permission: str
    resource: str
    told: str
    kind: str = ""  # "actas" where the refusal is about an account that is to be acted as


class Places:
    """Finds what has the policy that decides about a name."""

    def __init__(self, store: Store, projects: Directory) -> None:
        self.store = store
        self._projects = projects

    def of(self, name: str) -> str:
        """The project, account, secret, container or billing account of a name; "" for none."""
        parts = name.split("/")
        if len(parts) < 2 or not parts[1]:
            return ""
        if parts[0] in ("folders", "organizations", "billingAccounts"):
            return f"{parts[0]}/{parts[1]}"
        if parts[0] != "projects":
            return ""
        if parts[2:3] == ["serviceAccounts"] and len(parts) > 3:
            return self.account(parts[3], parts[1])
        if parts[2:3] == ["secrets"] and len(parts) > 3:
            return f"{self.project(parts[1])}/secrets/{parts[3]}"
        return self.project(parts[1])

    def project(self, name: str) -> str:
        """By id or number; one that is not there is named as it was asked for."""
        found = self._projects.find(name)
        return f"projects/{found['id'] if found else name}"

    def account(self, key: str, project: str = "-") -> str:
        """An account by e-mail or unique id, under the project that it is really in."""
        if "@" not in key:
            known = [*self.store.list_json(_ACCOUNTS), *self.store.list_json(_DELETED)]
            chosen = [one for one in known if one["unique_id"] == key]
            return str(chosen[0]["name"]) if chosen else self.project(project)
        numbered, owned = _NUMBERED.match(key), _OWNED.fullmatch(key)
        if numbered is not None:
            project = numbered[1]
        elif owned is not None:
            project = owned[1]
        return f"{self.project(project)}/serviceAccounts/{key}"

    def default_account(self, project: str) -> str:
        """The e-mail of the account that machines act as when none is named."""
        found = self._projects.find(project)
        number = found["number"] if found else project
        return f"{number}-compute@developer.gserviceaccount.com"

    def acting_as(self, email: str, project: str = "") -> Need:
        """To act as an account; "" and "default" stand for that of a project's machines."""
        email = self.default_account(project) if email in ("", "default") else email
        return Need(ACT_AS, self.account(email), email, "actas")

    def is_ours(self, project: str) -> bool:
        """Whether it is a project of this cloud, and none of Google's public ones."""
        return self._projects.find(project) is not None


def text_at(request: Any, path: str) -> str:
    """A text in a message, "" where there is none."""
    for name in path.split("."):
        if name not in request.DESCRIPTOR.fields_by_name:
            return ""
        request = getattr(request, name)
        if isinstance(request, str):
            return request
    return ""
