"""Resource Manager v1, and v2 of its folders, for gcloud: what v3 holds, in the older shapes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from google.cloud.resourcemanager_v3.types import folders, organizations, projects

from tpuctl.emulator.resource_manager.v1_messages import V1, V2
from tpuctl.emulator.state.errors import ApiError, invalid
from tpuctl.emulator.state.operations import Effect
from tpuctl.emulator.state.projects import FOLDER, ORGANIZATION, Project
from tpuctl.emulator.wire import filters
from tpuctl.emulator.wire.paging import page
from tpuctl.emulator.wire.registry import Caller, World

__all__ = ["ResourcesV1Service"]

_PARENTS = re.compile(r"(parent\.type\s*[:=]\s*\S+)\s+(parent\.id\s*[:=]\s*\S+)", re.IGNORECASE)


class ResourcesV1Service:
    """The handlers of google.cloudresourcemanager.v1 and google.cloud.resourcemanager.v2."""

    effects: Mapping[str, Effect] = {}

    def __init__(self, world: World) -> None:
        self._handlers: Mapping[str, Any] = {
            f"{V1.package}.Projects": _Projects(world),
            f"{V1.package}.Organizations": _Organizations(world),
            f"{V1.package}.Operations": _Operations(world),
            f"{V2.package}.Folders": _Folders(world),
        }

    def handler(self, service: str) -> Any:
        return self._handlers.get(service)


class _Policies:
    """The three methods about a policy: v3 says them in the same messages."""

    key = "projects"

    def __init__(self, world: World) -> None:
        self._world = world

    @property
    def _newer(self) -> Any:
        return self._world.service(self.key)

    async def get_iam_policy(self, request: Any, caller: Caller) -> Any:
        return await self._newer.get_iam_policy(request, caller)

    async def set_iam_policy(self, request: Any, caller: Caller) -> Any:
        return await self._newer.set_iam_policy(request, caller)

    async def test_iam_permissions(self, request: Any, caller: Caller) -> Any:
        return await self._newer.test_iam_permissions(request, caller)


class _Projects(_Policies):
    """Projects, changed at once where v3 makes an operation of it."""

    async def create_project(self, request: Any, caller: Caller) -> Any:
        wanted = request.project
        newer = projects.CreateProjectRequest.pb()(
            project=projects.Project.pb()(
                project_id=wanted.project_id,
                display_name=wanted.name,
                parent=_parent_name(wanted.parent),
                labels=wanted.labels,
            )
        )
        operation = await self._newer.create_project(newer, caller)
        return _operation(self._world, operation.name)

    async def list_projects(self, request: Any, caller: Caller) -> Any:
        """Those that the caller may get; deleted ones too, unless the filter says otherwise."""
        every = self._world.projects.all()
        known = [_message(project) for project in every if self._newer.may_get(project, caller)]
        chosen = [project for project in known if _takes(request.filter, project)]
        rows, token = page(
            chosen, request.page_size, request.page_token, lambda row: str(row.project_id)
        )
        return V1.message("ListProjectsResponse")(projects=rows, next_page_token=token)

    async def get_project(self, request: Any, caller: Caller) -> Any:
        return _message(self._get(request.name))

    async def update_project(self, request: Any, caller: Caller) -> Any:
        """Replaces name and labels, and moves the project where the parent is another."""
        project, wanted = self._get(request.name, active=True), request.project
        parent = _parent_name(wanted.parent)
        if parent != project["parent"]:
            if parent not in (ORGANIZATION, FOLDER):
                raise _denied()
            project["parent"] = parent
            self._world.projects.save(project)
        newer = projects.UpdateProjectRequest.pb()(
            project=projects.Project.pb()(
                name=request.name, display_name=wanted.name, labels=wanted.labels
            )
        )
        await self._newer.update_project(newer, caller)
        return _message(self._get(request.name))

    async def delete_project(self, request: Any, caller: Caller) -> None:
        self._get(request.name)
        await self._newer.delete_project(request, caller)

    async def undelete_project(self, request: Any, caller: Caller) -> None:
        if self._get(request.name)["state"] != "DELETE_REQUESTED":
            raise _precondition()
        await self._newer.undelete_project(request, caller)

    async def get_ancestry(self, request: Any, caller: Caller) -> Any:
        """The project first, then what it is in."""
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
        project = self._world.projects.find(name.partition("/")[2])
        if project is None:
            raise _denied()
        if active and project["state"] != "ACTIVE":
            raise _precondition()
        return project


class _Organizations(_Policies):
    """The one organization."""

    key = "containers"

    async def get_organization(self, request: Any, caller: Caller) -> Any:
        return _organization(await self._newer.get_organization(request, caller))

    async def search_organizations(self, request: Any, caller: Caller) -> Any:
        newer = organizations.SearchOrganizationsRequest.pb()(
            query=request.filter.replace("owner.", ""),
            page_size=request.page_size,
            page_token=request.page_token,
        )
        found = await self._newer.search_organizations(newer, caller)
        return V1.message("SearchOrganizationsResponse")(
            organizations=[_organization(one) for one in found.organizations],
            next_page_token=found.next_page_token,
        )


class _Folders(_Policies):
    """The one folder, in v2."""

    key = "containers"

    async def get_folder(self, request: Any, caller: Caller) -> Any:
        return _folder(await self._newer.get_folder(request, caller))

    async def list_folders(self, request: Any, caller: Caller) -> Any:
        found = await self._newer.list_folders(request, caller)
        return V2.message("ListFoldersResponse")(
            folders=[_folder(one) for one in found.folders], next_page_token=found.next_page_token
        )

    async def search_folders(self, request: Any, caller: Caller) -> Any:
        newer = folders.SearchFoldersRequest.pb()(
            query=request.query.replace("lifecycleState", "state"),
            page_size=request.page_size,
            page_token=request.page_token,
        )
        found = await self._newer.search_folders(newer, caller)
        return V2.message("SearchFoldersResponse")(
            folders=[_folder(one) for one in found.folders], next_page_token=found.next_page_token
        )


class _Operations:
    """Operations about projects, with what they made in the shape of this version."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def get_operation(self, request: Any, caller: Caller) -> Any:
        return _operation(self._world, request.name)


def _operation(world: World, name: str) -> Any:
    record = world.operations.get(name)
    operation = world.operations.message(record)
    if record.effect == "projects.create":
        status = V1.message("ProjectCreationStatus")(ready=record.is_done, gettable=record.is_done)
        status.create_time.FromNanoseconds(int(record.started * 1e9))
        operation.metadata.Pack(status)
    project = world.projects.find(record.arguments["id"])
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


def _organization(newer: Any) -> Any:
    answer = V1.message("Organization")(
        name=newer.name, display_name=newer.display_name, lifecycle_state=int(newer.state)
    )
    answer.owner.directory_customer_id = newer.directory_customer_id
    answer.creation_time.CopyFrom(newer.create_time)
    return answer


def _folder(newer: Any) -> Any:
    answer = V2.message("Folder")(
        name=newer.name,
        parent=newer.parent,
        display_name=newer.display_name,
        lifecycle_state=int(newer.state),
    )
    answer.create_time.CopyFrom(newer.create_time)
    return answer


def _takes(text: str, project: Any) -> bool:
    """Rules are case insensitive; of several terms without a word between them any will do, but
    the two about the parent belong together (the method's own description)."""
    try:
        joined = _PARENTS.sub(r"(\1 AND \2)", text)
        return filters.matches(_facts(project), joined, _holds, any_of=True)
    except filters.InvalidFilter:
        raise invalid("Request contains an invalid argument.") from None


def _facts(project: Any) -> dict[str, str]:
    state = V1.message("Project").DESCRIPTOR.fields_by_name["lifecycle_state"].enum_type
    facts = {
        "id": project.project_id,
        "projectid": project.project_id,
        "projectnumber": str(project.project_number),
        "name": project.name,
        "lifecyclestate": state.values_by_number[project.lifecycle_state].name,
        "createtime": project.create_time.ToJsonString(),
        "parent.type": project.parent.type,
        "parent.id": project.parent.id,
    }
    return facts | {f"labels.{key}": value for key, value in project.labels.items()}


def _holds(facts: Mapping[str, Any], field: str, operator: str, wanted: str) -> bool:
    field = field.lower()
    if field not in facts and not field.startswith("labels."):
        raise filters.InvalidFilter(field)
    actual = facts.get(field)
    pattern = re.escape(wanted).replace(r"\*", ".*")
    is_like = actual is not None and re.fullmatch(pattern, actual, re.IGNORECASE) is not None
    return is_like == (operator != "!=")


def _denied() -> ApiError:
    """For what is absent and what is closed alike, as gcloud shows it in many public reports."""
    return ApiError("PERMISSION_DENIED", "The caller does not have permission")


def _precondition() -> ApiError:
    return ApiError("FAILED_PRECONDITION", "Precondition check failed.")
