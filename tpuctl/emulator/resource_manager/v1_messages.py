"""Messages of Resource Manager v1, and of v2 for folders, which gcloud uses for projects.

From Google's discovery documents of cloudresourcemanager v1 and v2. Where these identify a project
by ID alone, the field holds `projects/ID` from the path, as in v3. Methods with `AbsentRequest` are
declared, but not emulated.
"""

from __future__ import annotations

from collections.abc import Mapping

from tpuctl.emulator.wire.discovery.definitions import Definition
from tpuctl.emulator.wire.messages import Method

_STATES = ("LIFECYCLE_STATE_UNSPECIFIED", "ACTIVE", "DELETE_REQUESTED")


def _policy_methods(version: str, resource: str) -> Mapping[str, str]:
    path = f"POST /{version}/{{resource={resource}/*}}"
    return {
        "get_iam_policy": f"{path}:getIamPolicy *: GetIamPolicyRequest -> Policy",
        "set_iam_policy": f"{path}:setIamPolicy *: SetIamPolicyRequest -> Policy",
        "test_iam_permissions": f"{path}:testIamPermissions *: TestIamPermissionsRequest -> "
        "TestIamPermissionsResponse",
    }


def _organization_policies(resource: str) -> Mapping[str, str]:
    names = {
        "clear_org_policy": "clearOrgPolicy",
        "get_effective_org_policy": "getEffectiveOrgPolicy",
        "get_org_policy": "getOrgPolicy",
        "list_available_org_policy_constraints": "listAvailableOrgPolicyConstraints",
        "list_org_policies": "listOrgPolicies",
        "set_org_policy": "setOrgPolicy",
    }
    path = f"POST /v1/{{resource={resource}/*}}"
    return {name: f"{path}:{verb}: AbsentRequest -> Empty" for name, verb in names.items()}


_PROJECT = "/v1/{name=projects/*}"

V1 = Definition(
    "google.cloudresourcemanager.v1",
    messages={
        "Project": "create_time:Timestamp labels:map lifecycle_state:LifecycleState name "
        "parent:ResourceId project_id project_number:int64",
        "ResourceId": "id type",
        "ProjectCreationStatus": "create_time:Timestamp gettable:bool ready:bool",
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
        "Organization": "creation_time:Timestamp display_name lifecycle_state:LifecycleState name "
        "owner:OrganizationOwner",
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
            "create_project": "POST /v1/projects project: CreateProjectRequest -> Operation",
            "list_projects": "GET /v1/projects: ListProjectsRequest -> ListProjectsResponse",
            "get_project": f"GET {_PROJECT}: GetProjectRequest -> Project",
            "update_project": f"PUT {_PROJECT} project: UpdateProjectRequest -> Project",
            "delete_project": f"DELETE {_PROJECT}: DeleteProjectRequest -> Empty",
            "undelete_project": f"POST {_PROJECT}:undelete *: UndeleteProjectRequest -> Empty",
            "get_ancestry": f"POST {_PROJECT}:getAncestry *: GetAncestryRequest -> "
            "GetAncestryResponse",
            **_policy_methods("v1", "projects"),
            **_organization_policies("projects"),
        },
        "Organizations": {
            "get_organization": "GET /v1/{name=organizations/*}: GetOrganizationRequest -> "
            "Organization",
            "search_organizations": "POST /v1/organizations:search *: SearchOrganizationsRequest "
            "-> SearchOrganizationsResponse",
            **_policy_methods("v1", "organizations"),
            **_organization_policies("organizations"),
        },
        "Folders": {**_organization_policies("folders")},
        "Liens": {
            "list_liens": "GET /v1/liens: AbsentRequest -> Empty",
            "create_lien": "POST /v1/liens: AbsentRequest -> Empty",
            "get_lien": "GET /v1/{name=liens/*}: AbsentRequest -> Empty",
            "delete_lien": "DELETE /v1/{name=liens/*}: AbsentRequest -> Empty",
        },
        "Operations": {
            "get_operation": "GET /v1/{name=operations/*}: GetOperationRequest -> Operation",
        },
    },
)

_FOLDER = "/v2/{name=folders/*}"

V2 = Definition(
    "google.cloud.resourcemanager.v2",
    messages={
        "Folder": "create_time:Timestamp display_name lifecycle_state:LifecycleState name parent "
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
            "get_folder": f"GET {_FOLDER}: GetFolderRequest -> Folder",
            "list_folders": "GET /v2/folders: ListFoldersRequest -> ListFoldersResponse",
            "search_folders": "POST /v2/folders:search *: SearchFoldersRequest -> "
            "SearchFoldersResponse",
            **_policy_methods("v2", "folders"),
            "create_folder": "POST /v2/folders: AbsentRequest -> Operation",
            "update_folder": f"PATCH {_FOLDER}: AbsentRequest -> Folder",
            "delete_folder": f"DELETE {_FOLDER}: AbsentRequest -> Folder",
            "move_folder": f"POST {_FOLDER}:move: AbsentRequest -> Operation",
            "undelete_folder": f"POST {_FOLDER}:undelete: AbsentRequest -> Folder",
        }
    },
)


def methods(service: str) -> list[Method]:
    """The methods of a service of either version, by full name."""
    return (V2 if service.startswith(f"{V2.package}.") else V1).methods(service)
