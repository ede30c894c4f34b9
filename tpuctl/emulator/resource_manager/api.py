"""Resource Manager, as the core knows it."""

from __future__ import annotations

from tpuctl.emulator.resource_manager.access import ACCESS
from tpuctl.emulator.wire.google_api import GoogleApi, Surface

__all__ = ["API"]

_OLDER = "tpuctl.emulator.resource_manager.v1_messages"
_PACES = {
    "projects.create": (0.6, 20.0),  # guess
    "projects.delete": (0.2, 5.0),  # guess
}

API = GoogleApi(
    access=ACCESS,
    services={
        "projects": "tpuctl.emulator.resource_manager.projects:ProjectsService",
        "containers": "tpuctl.emulator.resource_manager.folders:ContainersService",
        "resources_v1": "tpuctl.emulator.resource_manager.v1:ResourcesV1Service",
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
