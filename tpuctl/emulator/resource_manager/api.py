"""Resource Manager, as the core knows it: its surfaces, who may call it, and its paces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tpuctl.emulator.iam.api_access import ApiAccess, denied_plainly
from tpuctl.emulator.iam.refusals import on_platform
from tpuctl.emulator.iam.required_permissions import Need, Places
from tpuctl.emulator.state.errors import ApiError
from tpuctl.emulator.wire.google_api import GoogleApi, Surface

__all__ = ["API"]

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


_ACCESS = ApiAccess(
    package=__package__,
    host=_HOST,
    methods=("google.cloud.resourcemanager.", "google.cloudresourcemanager."),
    refuse=_refuse,
    rules={"new_project": _new_project},
    reading_scopes=("cloud-platform.read-only",),
)

_OLDER = "tpuctl.emulator.resource_manager.v1_messages"
_PACES = {
    "projects.create": (0.6, 20.0),  # guess
    "projects.delete": (0.2, 5.0),  # guess
}

API = GoogleApi(
    access=_ACCESS,
    services={
        "projects": "tpuctl.emulator.resource_manager.projects:ProjectsService",
        "containers": "tpuctl.emulator.resource_manager.folders:ContainersService",
        "resources_v1": "tpuctl.emulator.resource_manager.v1:ResourcesV1Service",
    },
    documents={
        "cloudresourcemanager.v3": "Resource Manager v3",
        "cloudresourcemanager.v2": "Resource Manager v2",
        "cloudresourcemanager.v1": "Resource Manager v1",
    },
    surfaces=(
        Surface(
            "google.cloud.resourcemanager.v3.Projects",
            "google.cloud.resourcemanager_v3.services.projects",
            "Projects",
            "projects",
            r"/v3/(?:projects|operations)",
        ),
        *(
            Surface(
                f"google.cloud.resourcemanager.v3.{kind.capitalize()}",
                f"google.cloud.resourcemanager_v3.services.{kind}",
                kind.capitalize(),
                "containers",
                f"/v3/{kind}",
            )
            for kind in ("folders", "organizations")
        ),
        *(
            Surface(
                f"google.cloudresourcemanager.v1.{client}",
                "",
                client,
                "resources_v1",
                paths,
                family="both",
                definition=_OLDER,
            )
            for client, paths in (
                ("Projects", r"/v1/projects(?:/[^/]+)?$"),
                ("Organizations", r"/v1/organizations(?:/[^/]+|:search)$"),
                ("Folders", r"/v1/folders/[^/]+$"),
                ("Liens", r"/v1/liens(?:/|$)"),
                ("Operations", r"/v1/operations/(?:cp|pc)\."),
            )
        ),
        Surface(
            "google.cloud.resourcemanager.v2.Folders",
            "",
            "Folders",
            "resources_v1",
            r"/v2/folders",
            definition=_OLDER,
        ),
    ),
    paces=_PACES,
)
