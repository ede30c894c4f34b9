"""What policies hold before anybody sets them, and what Google adds when an API is enabled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tpuctl.emulator.state.members import member_of
from tpuctl.emulator.state.projects import OWNER, Project
from tpuctl.emulator.state.settings import Settings
from tpuctl.emulator.state.store import Store

__all__ = ["agents_of", "first_bindings", "object_bindings"]

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


def first_bindings(store: Store, resource: str) -> Bindings:
    """The bindings of a resource whose policy nobody has set."""
    kind, _, name = resource.partition("/")
    if kind == "projects" and "/" not in name:
        project = store.get_json("project", name) or {}
        return [{"role": "roles/owner", "members": [member_of(project.get("owner") or OWNER)]}]
    if kind == "buckets":
        return _of_bucket(store, name)
    return [{"role": role, "members": [member_of(OWNER)]} for role in _CONTAINERS.get(kind, ())]


def _of_bucket(store: Store, name: str) -> Bindings:
    """cloud.google.com/storage/docs/access-control/iam: what a new bucket grants."""
    bucket = store.get_json("bucket", name)
    if bucket is None:
        return []
    project = store.get("project-number", bucket["projectNumber"])
    owner = project.decode() if project else bucket["projectNumber"]
    bindings = [
        {"role": "roles/storage.legacyBucketOwner", "members": _editors(owner)},
        {"role": "roles/storage.legacyBucketReader", "members": [f"projectViewer:{owner}"]},
    ]
    return bindings + _of_objects(owner) if _is_uniform(bucket) else bindings


def object_bindings(store: Store, name: str) -> Bindings:
    """What the objects' own access lists grant in a bucket that has them: the usual default.

    Lists that were set otherwise are not imitated.
    """
    bucket = store.get_json("bucket", name)
    if bucket is None or _is_uniform(bucket):
        return []
    project = store.get("project-number", bucket["projectNumber"])
    return _of_objects(project.decode() if project else bucket["projectNumber"])


def _is_uniform(bucket: Mapping[str, Any]) -> bool:
    access = bucket.get("iamConfiguration", {}).get("uniformBucketLevelAccess", {})
    return bool(access.get("enabled"))


def _of_objects(owner: str) -> Bindings:
    return [
        {"role": "roles/storage.legacyObjectOwner", "members": _editors(owner)},
        {"role": "roles/storage.legacyObjectReader", "members": [f"projectViewer:{owner}"]},
    ]


def _editors(owner: str) -> list[str]:
    return [f"projectEditor:{owner}", f"projectOwner:{owner}"]


def agents_of(settings: Settings, project: Project, agents: Sequence[tuple[str, str]]) -> Bindings:
    """What enabling an API with these agents for the first time adds to the project's policy."""
    bindings = []
    for role, form in agents:
        if form.startswith("{}-compute") and _NO_DEFAULTS in settings.get("policies"):
            continue
        email = form.format(project["number"])
        bindings.append({"role": role, "members": [f"serviceAccount:{email}"]})
    return bindings
