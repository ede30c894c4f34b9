"""Who may call Resource Manager, and how it refuses the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tpuctl.emulator.iam.api_access import ApiAccess, denied_plainly
from tpuctl.emulator.iam.refusals import on_platform
from tpuctl.emulator.iam.required_permissions import Need, Places
from tpuctl.emulator.state.errors import ApiError

__all__ = ["ACCESS"]

_HOST = "cloudresourcemanager.googleapis.com"


def _refuse(method: str, need: Need, email: str, request: Any) -> ApiError:
    """GoogleCloudPlatform/avocano#551, terraform-google-project-factory#558."""
    if method.startswith("google.cloud.resourcemanager."):
        if method.endswith("/CreateProject"):
            return denied_plainly(method, need, email, request)
        return on_platform(_HOST)(method, need, email, request)
    if method.endswith("/SetIamPolicy"):
        return ApiError("PERMISSION_DENIED", "Policy update access denied.")
    return denied_plainly(method, need, email, request)


def _new_project(places: Places, request: Any) -> Iterator[Need]:
    """Of a project without parent nobody is asked."""
    parent = request.project.parent
    if not isinstance(parent, str):  # Resource Manager v1 has its type and id
        parent = f"{parent.type}s/{parent.id}" if parent.id else ""
    resource = places.of(parent)
    if resource:
        yield Need("resourcemanager.projects.create", resource, parent)


ACCESS = ApiAccess(
    package=__package__,
    host=_HOST,
    methods=("google.cloud.resourcemanager.", "google.cloudresourcemanager."),
    refuse=_refuse,
    rules={"new_project": _new_project},
    reading_scopes=("cloud-platform.read-only",),
)
