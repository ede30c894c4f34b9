"""Keys of Cloud KMS, and whether a service's agent can encrypt with one."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tpuctl.emulator.state.constraints import OrgPolicies
from tpuctl.emulator.state.projects import Directory, Project
from tpuctl.emulator.state.store import Store

RINGS, KEYS, VERSIONS = "kms.ring", "kms.key", "kms.version"  # kinds in the store
KEY = re.compile(
    r"projects/(?P<project>[^/]+)/locations/(?P<location>[^/]+)/keyRings/[^/]+/cryptoKeys/[^/]+"
)
NON_CMEK_SERVICES = "gcp.restrictNonCmekServices"
KEY_PROJECTS = "gcp.restrictCmekCryptoKeyProjects"
_ENCRYPT, _DECRYPT = (f"cloudkms.cryptoKeyVersions.useTo{verb}crypt" for verb in ("En", "De"))


def version_row(store: Store, name: str) -> dict[str, Any] | None:
    """A version of a key; it is destroyed once that is due."""
    row: dict[str, Any] | None = store.get_json(VERSIONS, name)
    if row is not None and row["state"] == "DESTROY_SCHEDULED" and row["destroyed"] <= time.time():
        row["state"] = "DESTROYED"
    return row


@dataclass(frozen=True)
class UnusableKey(Exception):
    """Why a service cannot encrypt with a key; each service has its own words for it."""

    reason: str  # "denied", or the state of the version: "DISABLED"
    name: str  # of the key, or of its version
    permission: str = ""  # that the agent lacks

    @property
    def explanation(self) -> str:
        """In Cloud KMS's words."""
        if not self.permission:
            return f"{self.name} is not enabled, current state is: {self.reason}."
        return denied_text(self.permission, self.name)


def denied_text(permission: str, resource: str) -> str:
    """Wording from hashicorp/terraform-provider-google#5103."""
    return f"Permission '{permission}' denied on resource '{resource}' (or it may not exist)."


class CryptoKeys:
    """What services ask before they encrypt."""

    def __init__(
        self,
        store: Store,
        projects: Directory,
        allows: Callable[[str, str, str, Mapping[str, Any]], bool],
    ) -> None:
        """`allows` is the authority's."""
        self._store = store
        self._projects = projects
        self._allows = allows
        self._policies = OrgPolicies(store)

    def usable_version(self, name: str, agent: str) -> str:
        """The full name of the version that an agent, by email, encrypts with.

        Raises UnusableKey. As members of policies, keys of projects that this cloud does not have
        are not checked.
        """
        full, is_here = self._full(name)
        if not is_here:
            return f"{name}/cryptoKeyVersions/1"
        key = self._require(full, agent, _ENCRYPT)
        version = f"{full}/cryptoKeyVersions/{key['primary'] or 1}"
        self._check_enabled(version)
        return version

    def check_version(self, name: str, agent: str) -> None:
        """Raise UnusableKey if an agent cannot decrypt what a version encrypted."""
        full, is_here = self._full(name)
        if is_here:
            self._require(full.partition("/cryptoKeyVersions/")[0], agent, _DECRYPT)
            self._check_enabled(full)

    def _full(self, name: str) -> tuple[str, bool]:
        """The name with the project's ID, and whether the project is of this cloud."""
        project = self._projects.find(name.split("/")[1])
        if project is None:
            return name, False
        return re.sub(r"^projects/[^/]+", f"projects/{project['id']}", name), True

    def _require(self, name: str, agent: str, permission: str) -> dict[str, Any]:
        """The row of a key that an agent has a permission on."""
        key: dict[str, Any] | None = self._store.get_json(KEYS, name)
        if key is None or not self._allows(agent, permission, name, {"resource.name": name}):
            raise UnusableKey("denied", name, permission)
        return key

    def _check_enabled(self, version: str) -> None:
        row = version_row(self._store, version)
        if row is None or row["state"] != "ENABLED":
            raise UnusableKey("DESTROYED" if row is None else row["state"], version)

    def violation(self, project: Project, service: str, key: str) -> str:
        """The constraint that forbids a service's resource with this key ("": Google's own).

        kms/docs/cmek-org-policy: the first lists services that may not do without a key, as denied
        values; the second the projects, folders or organizations that keys may be of.
        """
        owner = f"projects/{project['id']}"
        if not key:
            is_free = self._policies.allows(owner, NON_CMEK_SERVICES, service)
            return "" if is_free else NON_CMEK_SERVICES
        match = KEY.match(key)
        key_project = self._projects.find(match["project"]) if match is not None else None
        key_owner = key_project["id"] if key_project else (match["project"] if match else "")
        places = self._policies.ancestors(f"projects/{key_owner}")
        is_allowed = any(self._policies.allows(owner, KEY_PROJECTS, place) for place in places)
        return "" if is_allowed else KEY_PROJECTS
