"""Resource Manager v3: projects and their IAM policies."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

from google.cloud.resourcemanager_v3.types import projects as messages

from tpuctl.emulator.iam.policies import concurrent_change
from tpuctl.emulator.state.errors import ApiError, error_detail, invalid
from tpuctl.emulator.state.operations import Arguments, Effect, Record
from tpuctl.emulator.state.projects import FOLDER, ORGANIZATION, Project
from tpuctl.emulator.wire.filters import matches_pattern
from tpuctl.emulator.wire.operations_service import OperationsService
from tpuctl.emulator.wire.paging import requested_page
from tpuctl.emulator.wire.policy_handlers import PolicyHandlers
from tpuctl.emulator.wire.registry import Caller, Registry

_ID = re.compile(r"[a-z][a-z0-9-]{4,28}[a-z0-9]")
_PARENT = re.compile(r"(?:organizations|folders)/[0-9]+|")
_LABEL_KEY = re.compile(r"[^\W\d_A-Z][\w-]{0,62}")
_LABEL_VALUE = re.compile(r"[\w-]{0,63}")
_MAX_LABELS = 64
_TERM = re.compile(r"(\w[\w.]*)\s*[:=]\s*\"?([^\"\s]*)\"?")


class ProjectsService(OperationsService, PolicyHandlers):
    """Handlers of google.cloud.resourcemanager.v3.Projects."""

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry)
        self._projects = registry.projects
        self.effects: Mapping[str, Effect] = {
            "projects.create": Effect(self._finish_creation, metadata=_creation_metadata),
            "projects.change": Effect(self._finish_change),
        }

    async def create_project(self, request: Any, caller: Caller) -> Any:
        requested = request.project
        if not _ID.fullmatch(requested.project_id):
            violation = {
                "field": "project_id",
                "description": "project_id must be at least 6 characters long and at most 30: "
                "lower-case letters, digits and hyphens, a letter first, no hyphen last",
            }
            details = [error_detail("BadRequest", fieldViolations=[violation])]
            raise invalid("Request contains an invalid argument.", details=details)
        if not _PARENT.fullmatch(requested.parent):  # Google's wording: hashicorp/terraform#27072
            raise invalid("field [parent] has issue [Parent id must be numeric.]")
        _check_labels(requested.labels)
        if self._projects.find(requested.project_id) is not None:
            raise ApiError(
                "ALREADY_EXISTS", f"Requested entity already exists: {requested.project_id}"
            )
        record = self._registry.operations.begin(
            "",
            "projects.create",
            {
                "id": requested.project_id,
                "display_name": requested.display_name,
                "parent": requested.parent,
                "labels": dict(requested.labels),
                "owner": caller.email,
            },
            self._registry.pace.seconds("projects.create"),
            name=f"operations/cp.{self._registry.store.next('project-operation', 10**15)}",
        )
        return self._operations.message(record)

    async def get_project(self, request: Any, caller: Caller) -> Any:
        return _message(self._get(request.name))

    async def list_projects(self, request: Any, caller: Caller) -> Any:
        projects = [
            project
            for project in self._projects.all()
            if project["parent"] == request.parent
            and (request.show_deleted or project["state"] == "ACTIVE")
        ]
        rows, token = requested_page(request, projects, _project_id)
        return messages.ListProjectsResponse.pb()(
            projects=[_message(row) for row in rows], next_page_token=token
        )

    async def search_projects(self, request: Any, caller: Caller) -> Any:
        """Queries with terms such as `id:x`, `projectId:x`, `state:ACTIVE`, `labels.k:v`.

        Only projects that the caller may get are returned.
        """
        projects = [
            project
            for project in self._projects.all()
            if _matches(project, request.query) and self.may_get(project, caller)
        ]
        rows, token = requested_page(request, projects, _project_id)
        return messages.SearchProjectsResponse.pb()(
            projects=[_message(row) for row in rows], next_page_token=token
        )

    def may_get(self, project: Project, caller: Caller) -> bool:
        """Whether searches and lists include a project for this caller."""
        may = self._registry.authority.allows
        return may(caller.email, "resourcemanager.projects.get", f"projects/{project['id']}")

    async def update_project(self, request: Any, caller: Caller) -> Any:
        project = self._get(request.project.name)
        etag = request.project.etag
        if etag and etag != _etag(project):
            raise concurrent_change()
        _check_labels(request.project.labels)
        paths = list(request.update_mask.paths) or ["display_name", "labels"]
        for path in paths:
            field, _, key = path.partition(".")
            if path == "display_name":
                project["display_name"] = request.project.display_name
            elif path == "labels":
                project["labels"] = dict(request.project.labels)
            elif field == "labels":
                project["labels"].pop(key, None)
                if key in request.project.labels:
                    project["labels"][key] = request.project.labels[key]
            else:
                raise invalid(f"The field {path!r} cannot be updated.")
        return self._change(project)

    async def delete_project(self, request: Any, caller: Caller) -> Any:
        project = self._get(request.name)
        if project["state"] != "ACTIVE":
            raise ApiError("FAILED_PRECONDITION", "Precondition check failed.")
        project["state"] = "DELETE_REQUESTED"
        return self._change(project)

    async def undelete_project(self, request: Any, caller: Caller) -> Any:
        project = self._get(request.name)
        project["state"] = "ACTIVE"
        return self._change(project)

    def _policy_name(self, resource: str, verb: str) -> str:
        return f"projects/{self._get(resource)['id']}"

    def _get(self, name: str) -> Project:
        project = self._projects.find(name.partition("/")[2])
        if project is None:
            # Google does not disclose whether the project exists.
            raise ApiError(
                "PERMISSION_DENIED",
                f"The caller does not have permission on '{name}' (or it may not exist).",
            )
        return project

    def _change(self, project: Project) -> Any:
        project["updated"] = time.time()
        self._projects.save(project)
        record = self._registry.operations.begin(
            "",
            "projects.change",
            {"id": project["id"]},
            self._registry.pace.seconds("projects.delete"),
            name=f"operations/pc.{self._registry.store.next('project-operation', 10**15)}",
        )
        return self._operations.message(record)

    def _finish_creation(self, arguments: Arguments) -> Any:
        if self._projects.find(arguments["id"]) is not None:
            raise ApiError("ALREADY_EXISTS", f"Requested entity already exists: {arguments['id']}")
        parent = arguments["parent"]
        if parent not in ("", ORGANIZATION, FOLDER):
            # The same error for missing and inaccessible, in the operation (GAM-team/GAM#1227).
            name = f"projects/{arguments['id']}"
            raise ApiError(
                "PERMISSION_DENIED",
                "Permission 'resourcemanager.projects.create' denied on parent resource "
                f"'{parent}'.",
                details=[error_detail("ResourceInfo", resourceType="project", resourceName=name)],
            )
        project = self._projects.add(
            arguments["id"],
            display_name=arguments["display_name"],
            parent=parent,
            labels=arguments["labels"],
            owner=arguments["owner"],
        )
        return _message(project)

    def _finish_change(self, arguments: Arguments) -> Any:
        project = self._projects.find(arguments["id"])
        assert project is not None
        return _message(project)


def _project_id(project: Project) -> str:
    return str(project["id"])


def _etag(project: Project) -> str:
    return f'W/"{int(project["updated"] * 1e6):x}"'


def _check_labels(labels: Mapping[str, str]) -> None:
    """Limits from the message's description, wording from bridgecrewio/yor#248.

    The wording about keys and the number of labels is a guess.
    """
    if len(labels) > _MAX_LABELS:
        raise invalid(
            f"field [project.labels] has issue [There can be at most {_MAX_LABELS} labels.]"
        )
    allowed = (
        "can only contain lowercase letters, numeric characters, underscores and dashes. The {} "
        "can be at most 63 characters long. International characters are allowed.]"
    )
    for key, value in labels.items():
        if not _LABEL_KEY.fullmatch(key) or key != key.lower():
            raise invalid(
                f"field [project.labels] has issue [Label key '{key}' violates format "
                f"constraints. The key must start with a lowercase letter and {allowed}".format(
                    "key"
                )
            )
        if not _LABEL_VALUE.fullmatch(value) or value != value.lower():
            raise invalid(
                f"field [project.labels] has issue [Label value '{value}' violates format "
                f"constraints. The value {allowed}".format("value")
            )


def _matches(project: Project, query: str) -> bool:
    for key, value in _TERM.findall(query):
        if key.startswith("labels."):
            actual = project["labels"].get(key.removeprefix("labels."))
            if actual is None or value not in ("*", actual):
                return False
            continue
        actual = {
            "id": project["id"],
            "projectId": project["id"],
            "name": project["display_name"],
            "displayName": project["display_name"],
            "state": project["state"],
            "lifecycleState": project["state"],
            "parent": project["parent"],
            "projectNumber": str(project["number"]),
        }.get(key)
        if actual is None:
            raise invalid(f"Unknown field in query: {key}")
        if not matches_pattern(actual, value):
            return False
    return True


def _message(project: Project) -> Any:
    answer = messages.Project.pb()(
        name=f"projects/{project['number']}",
        parent=project["parent"],
        project_id=project["id"],
        state=getattr(messages.Project.State, project["state"]),
        display_name=project["display_name"],
        labels=project["labels"],
        etag=_etag(project),
    )
    answer.create_time.FromNanoseconds(int(project["created"] * 1e9))
    answer.update_time.FromNanoseconds(int(project["updated"] * 1e9))
    return answer


def _creation_metadata(record: Record) -> Any:
    answer = messages.CreateProjectMetadata.pb()(ready=record.is_done, gettable=record.is_done)
    answer.create_time.FromNanoseconds(int(record.started * 1e9))
    return answer
