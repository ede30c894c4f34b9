"""Registration of Resource Manager: surfaces, permissions and paces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tpuctl.emulator.iam.api_access import ApiAccess, plain_denial
from tpuctl.emulator.iam.permission_errors import platform_denied
from tpuctl.emulator.iam.required_permissions import Need, PolicyResources
from tpuctl.emulator.state.errors import ApiError
from tpuctl.emulator.wire.google_api import GoogleApi, Surface

_HOST = "cloudresourcemanager.googleapis.com"


def _refuse(method: str, need: Need, email: str, request: Any) -> ApiError:
    """Wording: GoogleCloudPlatform/avocano#551, terraform-google-project-factory#558."""
    if method.startswith("google.cloud.resourcemanager."):
        if method.endswith("/CreateProject"):
            return plain_denial(method, need, email, request)
        return platform_denied(_HOST)(method, need, email, request)
    if method.endswith("/SetIamPolicy"):
        return ApiError("PERMISSION_DENIED", "Policy update access denied.")
    return plain_denial(method, need, email, request)


def _new_project(resources: PolicyResources, request: Any) -> Iterator[Need]:
    """Nothing is required for a project without a parent."""
    parent = request.project.parent
    if not isinstance(parent, str):  # v1 has a type and an ID
        parent = f"{parent.type}s/{parent.id}" if parent.id else ""
    resource = resources.resolve(parent)
    if resource:
        yield Need("resourcemanager.projects.create", resource, parent)


_ACCESS = ApiAccess(
    package=__package__,
    host=_HOST,
    methods=("google.cloud.resourcemanager.", "google.cloudresourcemanager."),
    refuse=_refuse,
    rules={"new_project": _new_project},
    read_scopes=("cloud-platform.read-only",),
)

_V1_MESSAGES = "tpuctl.emulator.resource_manager.v1_messages"
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
            "projects",
            r"/v3/(?:projects|operations)",
        ),
        *(
            Surface(
                f"google.cloud.resourcemanager.v3.{kind.capitalize()}",
                f"google.cloud.resourcemanager_v3.services.{kind}",
                "containers",
                f"/v3/{kind}",
            )
            for kind in ("folders", "organizations")
        ),
        *(
            Surface(
                f"google.cloudresourcemanager.v1.{client}",
                "",
                "resources_v1",
                paths,
                family="both",
                definition=_V1_MESSAGES,
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
            "resources_v1",
            r"/v2/folders",
            definition=_V1_MESSAGES,
        ),
    ),
    paces=_PACES,
)
