"""Messages of Resource Manager v1, and of v2 for folders, which gcloud uses for projects.

From Google's discovery documents of cloudresourcemanager v1 and v2. Where these identify a project
by ID alone, the field holds `projects/ID` from the path, as in v3.
"""

from __future__ import annotations

from collections.abc import Mapping

from tpuctl.emulator.resource_manager.definitions import Definition, MethodDefinition
from tpuctl.emulator.wire.messages import Method

_OPERATION = "google.longrunning.Operation"
_EMPTY = "google.protobuf.Empty"
_POLICY = "google.iam.v1.Policy"
_IAM = "google.iam.v1"
_TIME = "google.protobuf.Timestamp"
_STATES = ("LIFECYCLE_STATE_UNSPECIFIED", "ACTIVE", "DELETE_REQUESTED")
# Declared, but not emulated.
_UNSUPPORTED = (
    "clear_org_policy",
    "get_effective_org_policy",
    "get_org_policy",
    "list_available_org_policy_constraints",
    "list_org_policies",
    "set_org_policy",
)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


def _policy_methods(resource: str) -> Mapping[str, MethodDefinition]:
    """The policy methods of a resource."""
    path = f"{{resource={resource}/*}}"
    return {
        "get_iam_policy": MethodDefinition(
            f"{_IAM}.GetIamPolicyRequest", _POLICY, "POST", f"{path}:getIamPolicy", "*"
        ),
        "set_iam_policy": MethodDefinition(
            f"{_IAM}.SetIamPolicyRequest", _POLICY, "POST", f"{path}:setIamPolicy", "*"
        ),
        "test_iam_permissions": MethodDefinition(
            f"{_IAM}.TestIamPermissionsRequest",
            f"{_IAM}.TestIamPermissionsResponse",
            "POST",
            f"{path}:testIamPermissions",
            "*",
        ),
    }


def _organization_policies(resource: str) -> Mapping[str, MethodDefinition]:
    path = f"/v1/{{resource={resource}/*}}"
    return {
        name: MethodDefinition("AbsentRequest", _EMPTY, "POST", f"{path}:{_camel(name)}")
        for name in _UNSUPPORTED
    }


def _versioned(
    version: str, ways: Mapping[str, MethodDefinition]
) -> Mapping[str, MethodDefinition]:
    return {
        name: MethodDefinition(
            way.request, way.response, way.verb, f"/{version}/{way.path}", way.body
        )
        for name, way in ways.items()
    }


_PROJECT = "/v1/{name=projects/*}"

V1 = Definition(
    "google.cloudresourcemanager.v1",
    messages={
        "Project": f"create_time:{_TIME} labels:map lifecycle_state:LifecycleState name "
        "parent:ResourceId project_id project_number:int64 tags:map",
        "ResourceId": "id type",
        "ProjectCreationStatus": f"create_time:{_TIME} gettable:bool ready:bool",
        "CreateProjectRequest": "project:Project",
        "GetProjectRequest": "name",
        "DeleteProjectRequest": "name",
        "UndeleteProjectRequest": "name",
        "UpdateProjectRequest": "name project:Project",
        "ListProjectsRequest": "filter page_size:int32 page_token",
        "ListProjectsResponse": "next_page_token projects:[Project]",
        "GetAncestryRequest": "name",
        "Ancestor": "resource_id:ResourceId",
        "GetAncestryResponse": "ancestor:[Ancestor]",
        "Organization": f"creation_time:{_TIME} display_name lifecycle_state:LifecycleState "
        "name owner:OrganizationOwner",
        "OrganizationOwner": "directory_customer_id",
        "GetOrganizationRequest": "name",
        "SearchOrganizationsRequest": "filter page_size:int32 page_token",
        "SearchOrganizationsResponse": "next_page_token organizations:[Organization]",
        "GetOperationRequest": "name",
        "AbsentRequest": "name resource",
    },
    enums={"LifecycleState": _STATES},
    services={
        "Projects": {
            "create_project": MethodDefinition(
                "CreateProjectRequest", _OPERATION, "POST", "/v1/projects", "project"
            ),
            "list_projects": MethodDefinition(
                "ListProjectsRequest", "ListProjectsResponse", "GET", "/v1/projects"
            ),
            "get_project": MethodDefinition("GetProjectRequest", "Project", "GET", _PROJECT),
            "update_project": MethodDefinition(
                "UpdateProjectRequest", "Project", "PUT", _PROJECT, "project"
            ),
            "delete_project": MethodDefinition("DeleteProjectRequest", _EMPTY, "DELETE", _PROJECT),
            "undelete_project": MethodDefinition(
                "UndeleteProjectRequest", _EMPTY, "POST", f"{_PROJECT}:undelete", "*"
            ),
            "get_ancestry": MethodDefinition(
                "GetAncestryRequest", "GetAncestryResponse", "POST", f"{_PROJECT}:getAncestry", "*"
            ),
            **_versioned("v1", _policy_methods("projects")),
            **_organization_policies("projects"),
        },
        "Organizations": {
            "get_organization": MethodDefinition(
                "GetOrganizationRequest", "Organization", "GET", "/v1/{name=organizations/*}"
            ),
            "search_organizations": MethodDefinition(
                "SearchOrganizationsRequest",
                "SearchOrganizationsResponse",
                "POST",
                "/v1/organizations:search",
                "*",
            ),
            **_versioned("v1", _policy_methods("organizations")),
            **_organization_policies("organizations"),
        },
        "Folders": {**_organization_policies("folders")},
        "Liens": {
            "list_liens": MethodDefinition("AbsentRequest", _EMPTY, "GET", "/v1/liens"),
            "create_lien": MethodDefinition("AbsentRequest", _EMPTY, "POST", "/v1/liens"),
            "get_lien": MethodDefinition("AbsentRequest", _EMPTY, "GET", "/v1/{name=liens/*}"),
            "delete_lien": MethodDefinition(
                "AbsentRequest", _EMPTY, "DELETE", "/v1/{name=liens/*}"
            ),
        },
        "Operations": {
            "get_operation": MethodDefinition(
                "GetOperationRequest", _OPERATION, "GET", "/v1/{name=operations/*}"
            ),
        },
    },
)

_FOLDER = "/v2/{name=folders/*}"

V2 = Definition(
    "google.cloud.resourcemanager.v2",
    messages={
        "Folder": f"create_time:{_TIME} display_name lifecycle_state:LifecycleState name parent "
        "tags:map",
        "GetFolderRequest": "name",
        "ListFoldersRequest": "page_size:int32 page_token parent show_deleted:bool",
        "ListFoldersResponse": "folders:[Folder] next_page_token",
        "SearchFoldersRequest": "page_size:int32 page_token query",
        "SearchFoldersResponse": "folders:[Folder] next_page_token",
        "AbsentRequest": "name",
    },
    enums={"LifecycleState": _STATES},
    services={
        "Folders": {
            "get_folder": MethodDefinition("GetFolderRequest", "Folder", "GET", _FOLDER),
            "list_folders": MethodDefinition(
                "ListFoldersRequest", "ListFoldersResponse", "GET", "/v2/folders"
            ),
            "search_folders": MethodDefinition(
                "SearchFoldersRequest", "SearchFoldersResponse", "POST", "/v2/folders:search", "*"
            ),
            **_versioned("v2", _policy_methods("folders")),
            "create_folder": MethodDefinition("AbsentRequest", _OPERATION, "POST", "/v2/folders"),
            "update_folder": MethodDefinition("AbsentRequest", "Folder", "PATCH", _FOLDER),
            "delete_folder": MethodDefinition("AbsentRequest", "Folder", "DELETE", _FOLDER),
            "move_folder": MethodDefinition("AbsentRequest", _OPERATION, "POST", f"{_FOLDER}:move"),
            "undelete_folder": MethodDefinition(
                "AbsentRequest", "Folder", "POST", f"{_FOLDER}:undelete"
            ),
        }
    },
)


def methods(service: str) -> list[Method]:
    """The methods of a service of either version, by full name."""
    return (V2 if service.startswith(f"{V2.package}.") else V1).methods(service)
