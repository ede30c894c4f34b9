"""Resource Manager v1, and v2 of folders, as used by gcloud: adapters of v3."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from google.cloud.resourcemanager_v3.types import folders, organizations, projects

from tpuctl.emulator.resource_manager.v1_messages import V1, V2
from tpuctl.emulator.state.errors import ApiError, invalid
from tpuctl.emulator.state.projects import FOLDER, ORGANIZATION, Project
from tpuctl.emulator.wire import filters
from tpuctl.emulator.wire.paging import requested_page
from tpuctl.emulator.wire.registry import Caller, Registry, Service

_PARENTS = re.compile(r"(parent\.type\s*[:=]\s*\S+)\s+(parent\.id\s*[:=]\s*\S+)", re.IGNORECASE)


class ResourcesV1Service(Service):
    """Handlers of google.cloudresourcemanager.v1 and google.cloud.resourcemanager.v2."""

    def __init__(self, registry: Registry) -> None:
        self._handlers: Mapping[str, Any] = {
            f"{V1.package}.Projects": _Projects(registry),
            f"{V1.package}.Organizations": _Organizations(registry),
            f"{V1.package}.Operations": _Operations(registry),
            f"{V2.package}.Folders": _Folders(registry),
        }

    def handler(self, service: str) -> Any:
        return self._handlers.get(service)


class _PolicyMethods(Service):
    """The three policy methods, which use the same messages in v3."""

    key = "projects"

    @property
    def _v3(self) -> Any:
        return self._registry.service(self.key)

    async def get_iam_policy(self, request: Any, caller: Caller) -> Any:
        return await self._v3.get_iam_policy(request, caller)

    async def set_iam_policy(self, request: Any, caller: Caller) -> Any:
        return await self._v3.set_iam_policy(request, caller)

    async def test_iam_permissions(self, request: Any, caller: Caller) -> Any:
        return await self._v3.test_iam_permissions(request, caller)


class _Projects(_PolicyMethods):
    """Projects; changes that are operations in v3 are immediate here."""

    async def create_project(self, request: Any, caller: Caller) -> Any:
        requested = request.project
        request_v3 = projects.CreateProjectRequest.pb()(
            project=projects.Project.pb()(
                project_id=requested.project_id,
                display_name=requested.name,
                parent=_parent_name(requested.parent),
                labels=requested.labels,
            )
        )
        operation = await self._v3.create_project(request_v3, caller)
        # Its name alone: k8s-config-connector@cdb85ecf17, the cassettes of projectinorg.
        return type(operation)(name=operation.name)

    async def list_projects(self, request: Any, caller: Caller) -> Any:
        """Projects that the caller may get, including deleted ones unless filtered out."""
        projects_ = self._registry.projects.all()
        visible = [_message(project) for project in projects_ if self._v3.may_get(project, caller)]
        matching = [project for project in visible if _filter_matches(request.filter, project)]
        rows, token = requested_page(request, matching, lambda row: str(row.project_id))
        return V1.message("ListProjectsResponse")(projects=rows, next_page_token=token)

    async def get_project(self, request: Any, caller: Caller) -> Any:
        return _message(self._get(request.name))

    async def update_project(self, request: Any, caller: Caller) -> Any:
        """Replaces name and labels, and moves the project if the parent differs."""
        project, requested = self._get(request.name, active=True), request.project
        parent = _parent_name(requested.parent)
        if parent != project["parent"]:
            if parent not in (ORGANIZATION, FOLDER):
                raise _denied()
            project["parent"] = parent
            self._registry.projects.save(project)
        request_v3 = projects.UpdateProjectRequest.pb()(
            project=projects.Project.pb()(
                name=request.name, display_name=requested.name, labels=requested.labels
            )
        )
        await self._v3.update_project(request_v3, caller)
        return _message(self._get(request.name))

    async def delete_project(self, request: Any, caller: Caller) -> None:
        self._get(request.name)
        await self._v3.delete_project(request, caller)

    async def undelete_project(self, request: Any, caller: Caller) -> None:
        if self._get(request.name)["state"] != "DELETE_REQUESTED":
            raise _precondition()
        await self._v3.undelete_project(request, caller)

    async def get_ancestry(self, request: Any, caller: Caller) -> Any:
        """The project first, then its ancestors."""
        project = self._get(request.name)
        names = [f"projects/{project['id']}"]
        if project["parent"]:
            names.append(project["parent"])
        if project["parent"] == FOLDER:
            names.append(ORGANIZATION)
        kind = V1.message("Ancestor")
        return V1.message("GetAncestryResponse")(
            ancestor=[kind(resource_id=_resource_id(name)) for name in names]
        )

    def _get(self, name: str, *, active: bool = False) -> Project:
        project = self._registry.projects.find(name.partition("/")[2])
        if project is None:
            raise _denied()
        if active and project["state"] != "ACTIVE":
            raise _precondition()
        return project


class _Organizations(_PolicyMethods):
    """The only organization."""

    key = "containers"

    async def get_organization(self, request: Any, caller: Caller) -> Any:
        return _organization(await self._v3.get_organization(request, caller))

    async def search_organizations(self, request: Any, caller: Caller) -> Any:
        request_v3 = organizations.SearchOrganizationsRequest.pb()(
            query=request.filter.replace("owner.", ""),
            page_size=request.page_size,
            page_token=request.page_token,
        )
        response = await self._v3.search_organizations(request_v3, caller)
        return V1.message("SearchOrganizationsResponse")(
            organizations=[_organization(organization) for organization in response.organizations],
            next_page_token=response.next_page_token,
        )


class _Folders(_PolicyMethods):
    """The only folder, in v2."""

    key = "containers"

    async def get_folder(self, request: Any, caller: Caller) -> Any:
        return _folder(await self._v3.get_folder(request, caller))

    async def list_folders(self, request: Any, caller: Caller) -> Any:
        response = await self._v3.list_folders(request, caller)
        return V2.message("ListFoldersResponse")(
            folders=[_folder(folder) for folder in response.folders],
            next_page_token=response.next_page_token,
        )

    async def search_folders(self, request: Any, caller: Caller) -> Any:
        request_v3 = folders.SearchFoldersRequest.pb()(
            query=request.query.replace("lifecycleState", "state"),
            page_size=request.page_size,
            page_token=request.page_token,
        )
        response = await self._v3.search_folders(request_v3, caller)
        return V2.message("SearchFoldersResponse")(
            folders=[_folder(folder) for folder in response.folders],
            next_page_token=response.next_page_token,
        )


class _Operations(Service):
    """Operations on projects, with v1 messages as responses."""

    async def get_operation(self, request: Any, caller: Caller) -> Any:
        return _operation(self._registry, request.name)


def _operation(registry: Registry, name: str) -> Any:
    record = registry.operations.get(name)
    operation = registry.operations.message(record)
    if record.effect == "projects.create":
        status = V1.message("ProjectCreationStatus")(ready=record.is_done, gettable=record.is_done)
        operation.metadata.Pack(status)
    project = registry.projects.find(record.arguments["id"])
    if operation.HasField("response") and project is not None:
        operation.response.Pack(_message(project))
    return operation


def _message(project: Project) -> Any:
    answer = V1.message("Project")(
        name=project["display_name"],
        project_id=project["id"],
        project_number=project["number"],
        labels=project["labels"],
        lifecycle_state=project["state"],
    )
    if project["parent"]:
        answer.parent.CopyFrom(_resource_id(project["parent"]))
    answer.create_time.FromNanoseconds(int(project["created"] * 1e3) * 1_000_000)
    return answer


def _resource_id(name: str) -> Any:
    kind, _, number = name.partition("/")
    return V1.message("ResourceId")(type=kind.removesuffix("s"), id=number)


def _parent_name(parent: Any) -> str:
    return f"{parent.type}s/{parent.id}" if parent.type or parent.id else ""


def _organization(organization_v3: Any) -> Any:
    answer = V1.message("Organization")(
        name=organization_v3.name,
        display_name=organization_v3.display_name,
        lifecycle_state=int(organization_v3.state),
    )
    answer.owner.directory_customer_id = organization_v3.directory_customer_id
    answer.creation_time.CopyFrom(organization_v3.create_time)
    return answer


def _folder(folder_v3: Any) -> Any:
    answer = V2.message("Folder")(
        name=folder_v3.name,
        parent=folder_v3.parent,
        display_name=folder_v3.display_name,
        lifecycle_state=int(folder_v3.state),
    )
    answer.create_time.CopyFrom(folder_v3.create_time)
    return answer


def _filter_matches(text: str, project: Any) -> bool:
    """Whether a filter matches. Terms are case insensitive; without an operator between them
    any term suffices, except that parent.type and parent.id belong together (from the method's
    description)."""
    try:
        joined = _PARENTS.sub(r"(\1 AND \2)", text)
        return filters.matches(_filter_fields(project), joined, _term_matches, any_of=True)
    except filters.InvalidFilter:
        raise invalid("Request contains an invalid argument.") from None


def _filter_fields(project: Any) -> dict[str, str]:
    state = V1.message("Project").DESCRIPTOR.fields_by_name["lifecycle_state"].enum_type
    fields = {
        "id": project.project_id,
        "projectid": project.project_id,
        "projectnumber": str(project.project_number),
        "name": project.name,
        "lifecyclestate": state.values_by_number[project.lifecycle_state].name,
        "createtime": project.create_time.ToJsonString(),
        "parent.type": project.parent.type,
        "parent.id": project.parent.id,
    }
    return fields | {f"labels.{key}": value for key, value in project.labels.items()}


def _term_matches(fields: Mapping[str, Any], field: str, operator: str, expected: str) -> bool:
    field = field.lower()
    if field not in fields and not field.startswith("labels."):
        raise filters.InvalidFilter(field)
    actual = fields.get(field)
    is_like = actual is not None and filters.matches_pattern(actual, expected)
    return is_like == (operator != "!=")


def _denied() -> ApiError:
    """For missing and inaccessible projects alike, as gcloud prints it in public reports."""
    return ApiError("PERMISSION_DENIED", "The caller does not have permission")


def _precondition() -> ApiError:
    return ApiError("FAILED_PRECONDITION", "Precondition check failed.")
