"""Bindings of policies that were never set, and those Google adds when an API is enabled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tpuctl.emulator.state.members import member_of
from tpuctl.emulator.state.projects import Project
from tpuctl.emulator.state.settings import Settings
from tpuctl.emulator.state.store import Store
from tpuctl.local_cloud.defaults import OWNER

Bindings = list[dict[str, Any]]

_CONTAINERS = {
    "folders": ("roles/resourcemanager.folderAdmin", "roles/resourcemanager.projectCreator"),
    "organizations": (
        "roles/resourcemanager.organizationAdmin",
        "roles/resourcemanager.projectCreator",
    ),
    "billingAccounts": ("roles/billing.admin",),
}
_NO_DEFAULTS = "iam.automaticIamGrantsForDefaultServiceAccounts"


def default_bindings(store: Store, resource: str) -> Bindings:
    """The bindings of a resource whose policy was never set."""
    kind, _, name = resource.partition("/")
    if kind == "projects" and "/" not in name:
        project = store.get_json("project", name) or {}
        return [{"role": "roles/owner", "members": [member_of(project.get("owner") or OWNER)]}]
    if kind == "buckets":
        return _bucket_bindings(store, name)
    return [{"role": role, "members": [member_of(OWNER)]} for role in _CONTAINERS.get(kind, ())]


def _bucket_bindings(store: Store, name: str) -> Bindings:
    """The bindings of a new bucket: cloud.google.com/storage/docs/access-control/iam."""
    bucket = store.get_json("bucket", name)
    if bucket is None:
        return []
    project = store.get("project-number", bucket["projectNumber"])
    owner = project.decode() if project else bucket["projectNumber"]
    bindings = [
        {"role": "roles/storage.legacyBucketOwner", "members": _editors(owner)},
        {"role": "roles/storage.legacyBucketReader", "members": [f"projectViewer:{owner}"]},
    ]
    return bindings + _legacy_object_bindings(owner) if _is_uniform(bucket) else bindings


def object_bindings(store: Store, name: str) -> Bindings:
    """Grants of default object ACLs in a bucket without uniform access.

    Other ACLs are not emulated.
    """
    bucket = store.get_json("bucket", name)
    if bucket is None or _is_uniform(bucket):
        return []
    project = store.get("project-number", bucket["projectNumber"])
    return _legacy_object_bindings(project.decode() if project else bucket["projectNumber"])


def _is_uniform(bucket: Mapping[str, Any]) -> bool:
    access = bucket.get("iamConfiguration", {}).get("uniformBucketLevelAccess", {})
    return bool(access.get("enabled"))


def _legacy_object_bindings(owner: str) -> Bindings:
    return [
        {"role": "roles/storage.legacyObjectOwner", "members": _editors(owner)},
        {"role": "roles/storage.legacyObjectReader", "members": [f"projectViewer:{owner}"]},
    ]


def _editors(owner: str) -> list[str]:
    return [f"projectEditor:{owner}", f"projectOwner:{owner}"]


def service_agent_bindings(
    settings: Settings, project: Project, agents: Sequence[tuple[str, str]]
) -> Bindings:
    """The bindings that first enabling an API adds for its service agents."""
    bindings = []
    for role, form in agents:
        if form.startswith("{}-compute") and _NO_DEFAULTS in settings.get("policies"):
            continue
        email = form.format(project["number"])
        bindings.append({"role": role, "members": [f"serviceAccount:{email}"]})
    return bindings
