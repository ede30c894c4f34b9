"""The project that a request is billed to, which buckets whose requester pays require.

cloud.google.com/storage/docs/requester-pays; measured by kmoneil/zig-gcp in September 2026 (its
docs/storage/buckets.md). Nothing is billed here.
"""

from __future__ import annotations

from typing import Any

from tpuctl.emulator.faults.google_messages import storage_denied
from tpuctl.emulator.faults.traffic import Caller
from tpuctl.emulator.state.errors import invalid
from tpuctl.emulator.wire.registry import Registry

_MISSING = "Bucket is a requester pays bucket but no user project provided."
_INVALID = "User project specified in the request is invalid."  # of googleapis/java-storage's tests
XML_CODES = {_MISSING: "UserProjectMissing", _INVALID: "UserProjectInvalid"}  # by message


def check_user_project(
    registry: Registry, caller: Caller, bucket: dict[str, Any] | None, name: str
) -> None:
    """Raise ApiError unless the caller may bill the request to the named project.

    Without a name, only those who may set the billing account of the bucket's project can use a
    bucket whose requester pays. `bucket` is None for calls that concern no existing bucket.
    """
    allows = registry.authority.allows
    if name:
        project = registry.projects.find(name)
        if project is None or project["state"] != "ACTIVE":
            raise invalid(_INVALID)
        permission = "serviceusage.services.use"
        if not allows(caller.email, permission, f"projects/{project['id']}"):
            raise storage_denied(caller.email, permission)
        return
    if bucket is None or not (bucket.get("billing") or {}).get("requesterPays"):
        return
    owner = registry.projects.find(bucket["projectNumber"])
    permission = "resourcemanager.projects.createBillingAssignment"
    if owner is None or not allows(caller.email, permission, f"projects/{owner['id']}"):
        raise invalid(_MISSING, reason="required")
