"""The common instance metadata of projects, and what a policy requires of metadata.

Of constraint compute.requireOsLogin, docs.cloud.google.com/compute/docs/oslogin/manage-oslogin-
in-an-org says: projects created while it is enforced have `enable-oslogin=TRUE`, and requests to
disable it are rejected. Here projects have it whenever the constraint is enforced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tpuctl.emulator.state.constraints import OrgPolicies
from tpuctl.emulator.state.store import Store

METADATA = "compute.metadata"  # kind in the store, by the project's ID
OS_LOGIN, CONSTRAINT = "enable-oslogin", "compute.requireOsLogin"

Items = list[dict[str, str]]


def project_metadata(store: Store, project: str) -> Items:
    """The items of a project's metadata."""
    items = list((store.get_json(METADATA, project) or {"items": []})["items"])
    if all(item["key"] != OS_LOGIN for item in items) and _is_enforced(store, project):
        items.append({"key": OS_LOGIN, "value": "TRUE"})
    return items


def disables_os_login(store: Store, project: str, items: Iterable[Mapping[str, str]]) -> bool:
    """Whether these items disable OS Login where a policy requires it."""
    values = [item["value"].lower() for item in items if item["key"] == OS_LOGIN]
    return bool(values) and values[0] != "true" and _is_enforced(store, project)


def _is_enforced(store: Store, project: str) -> bool:
    return OrgPolicies(store).is_enforced(f"projects/{project}", CONSTRAINT)
