"""IAM Admin v1: predefined and custom roles, and which permissions there are.

Ids of deleted roles stay taken until 37 days have passed, which nobody waits for here.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from google.cloud.iam_admin_v1.types import iam as messages

from tpuctl.emulator.iam.policies import ROLES
from tpuctl.emulator.iam.predefined_roles import (
    PredefinedRole,
    check_for_role,
    known_permissions,
    predefined_roles,
)
from tpuctl.emulator.state.errors import ApiError, invalid, missing
from tpuctl.emulator.state.projects import ORGANIZATION
from tpuctl.emulator.wire.paging import page
from tpuctl.emulator.wire.registry import Caller, World

__all__ = ["RoleHandlers"]

_ROLE_ID = re.compile(r"[a-zA-Z0-9_.]{3,64}")
_NAME = re.compile(r"((?:projects|organizations)/[^/]+)/roles/([^/]+)")
_FIELDS = ("title", "description", "included_permissions", "stage")
_LONGEST = {"title": 100, "description": 300}

Role = dict[str, Any]


class RoleHandlers:
    """The handlers of google.iam.admin.v1.IAM that are about roles."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def create_role(self, request: Any, caller: Caller) -> Any:
        parent = self._parent(request.parent)
        role_id = request.role_id
        if not _ROLE_ID.fullmatch(role_id):
            # From GoogleCloudPlatform/k8s-config-connector#210.
            raise invalid(
                f'The role_id "{role_id}" is invalid. It doesn\'t match pattern '
                '"[a-zA-Z0-9_\\.]{3,64}". The role_id must be 3 to 64 characters long and can be '
                "a mix of uppercase and lowercase English letters, digits, underscores and "
                "periods."
            )
        name = f"{parent}/roles/{role_id}"
        existing = self._world.store.get_json(ROLES, name)
        if existing is not None and existing["deleted"]:
            # From DataBiosphere/azul#4390 and many others.
            raise ApiError(
                "FAILED_PRECONDITION",
                f"You can't create a role_id ({role_id}) which has been marked for deletion.",
            )
        if existing is not None:
            raise ApiError("ALREADY_EXISTS", f"A role named {role_id} in {parent} already exists.")
        role: Role = {"name": name, "deleted": False}
        role["visible"] = time.time() + self._world.pace.seconds("identity.roles.visible")
        self._fill_role(role, request.role, _FIELDS)
        return self._save_role(role)

    async def get_role(self, request: Any, caller: Caller) -> Any:
        """Deleted roles are shown too, marked as such."""
        predefined = predefined_roles().get(request.name)
        if predefined is not None:
            return _predefined_message(predefined, full=True)
        if request.name.startswith("roles/"):
            raise _no_role(request.name)
        return _message(self._find_role(request.name), full=True)

    async def list_roles(self, request: Any, caller: Caller) -> Any:
        """Predefined roles without a parent, else the parent's custom ones."""
        full = request.view == messages.RoleView.FULL
        found: list[Any] = []
        if request.parent:
            parent = self._parent(request.parent)
            found = [
                _message(role, full=full)
                for role in self._world.store.list_json(ROLES, f"{parent}/roles/")
                if request.show_deleted or not role["deleted"]
            ]
        else:
            found = [_predefined_message(role, full=full) for role in predefined_roles().values()]
        rows, token = page(found, request.page_size or 300, request.page_token, _name_of)
        return messages.ListRolesResponse.pb()(roles=rows, next_page_token=token)

    async def update_role(self, request: Any, caller: Caller) -> Any:
        role = self._find_role(request.name)
        self._check_etag(role, request.role.etag)
        if role["deleted"]:
            # The words are a guess, after those that creation and deletion have.
            raise ApiError(
                "FAILED_PRECONDITION",
                f"You can't update a role_id ({request.name}) which has been marked for deletion.",
            )
        paths = [path for path in request.update_mask.paths if path not in ("name", "etag")]
        for path in paths:
            if path not in _FIELDS:
                raise invalid(f"The field {path!r} cannot be updated.")
        self._fill_role(role, request.role, paths or _FIELDS)
        return self._save_role(role)

    async def delete_role(self, request: Any, caller: Caller) -> Any:
        """It can be undeleted; bindings to it stay and grant nothing."""
        role = self._find_role(request.name)
        self._check_etag(role, request.etag)
        if role["deleted"]:
            # From GoogleCloudPlatform/k8s-config-connector#338.
            raise ApiError(
                "FAILED_PRECONDITION",
                f"You can't delete role_id ({request.name}) as it is already deleted.",
            )
        role["deleted"] = True
        return self._save_role(role)

    async def undelete_role(self, request: Any, caller: Caller) -> Any:
        role = self._find_role(request.name)
        self._check_etag(role, request.etag)
        if not role["deleted"]:
            raise ApiError(  # a guess, after deletion's words
                "FAILED_PRECONDITION",
                f"You can't undelete role_id ({request.name}) as it is not deleted.",
            )
        role["deleted"] = False
        return self._save_role(role)

    async def query_testable_permissions(self, request: Any, caller: Caller) -> Any:
        """Those of the list that is known here, which is not all of Google's."""
        _check_resource(request.full_resource_name)
        in_project = "/projects/" in request.full_resource_name
        names = known_permissions(for_projects=in_project)
        rows, token = page(names, request.page_size or 100, request.page_token, str)
        kind = messages.Permission
        return messages.QueryTestablePermissionsResponse.pb()(
            permissions=[
                kind.pb()(
                    name=name,
                    stage=kind.PermissionLaunchStage.GA,
                    custom_roles_support_level=kind.CustomRolesSupportLevel.SUPPORTED,
                )
                for name in rows
            ],
            next_page_token=token,
        )

    async def query_grantable_roles(self, request: Any, caller: Caller) -> Any:
        _check_resource(request.full_resource_name)
        full = request.view == messages.RoleView.FULL
        found = [_predefined_message(role, full=full) for role in predefined_roles().values()]
        project = re.search(r"/(projects/[^/]+)$", request.full_resource_name)
        if project is not None:
            custom = self._world.store.list_json(ROLES, f"{self._parent(project[1])}/roles/")
            found += [_message(role, full=full) for role in custom if not role["deleted"]]
        rows, token = page(found, request.page_size or 300, request.page_token, _name_of)
        return messages.QueryGrantableRolesResponse.pb()(roles=rows, next_page_token=token)

    def _parent(self, name: str) -> str:
        """The parent by its canonical name, which has the project's id."""
        kind, _, rest = name.partition("/")
        if kind == "projects" and rest:
            project = self._world.projects.require(rest, "iam.googleapis.com")
            return f"projects/{project['id']}"
        if name == ORGANIZATION:
            return name
        if kind == "organizations":
            raise ApiError("PERMISSION_DENIED", "The caller does not have permission")
        raise invalid(f"Invalid parent {name!r}.")

    def _find_role(self, name: str) -> Role:
        found = _NAME.fullmatch(name)
        if found is None or not _ROLE_ID.fullmatch(found[2]):
            # From GoogleCloudPlatform/k8s-config-connector#210.
            raise invalid(
                'The role name must be in the form "roles/{role}", '
                '"organizations/{organization_id}/roles/{role}", or '
                '"projects/{project_id}/roles/{role}".'
            )
        role = self._world.store.get_json(ROLES, f"{self._parent(found[1])}/roles/{found[2]}")
        if role is None:
            raise _no_role(name)
        return role

    def _check_etag(self, role: Role, given: bytes) -> None:
        if given and given != _etag(role):
            raise ApiError(  # the words are a guess, after those of policies
                "ABORTED",
                "There were concurrent changes to the role. Please retry the whole "
                "read-modify-write with exponential backoff.",
            )

    def _fill_role(self, role: Role, wanted: Any, paths: Sequence[str]) -> None:
        for path in paths:
            value = getattr(wanted, path)
            if path == "included_permissions":
                in_project = role["name"].startswith("projects/")
                check_for_role(value, in_project=in_project)
                value = sorted({*value})
            elif path in _LONGEST and len(value) > _LONGEST[path]:
                raise invalid(f"The role's {path} is longer than {_LONGEST[path]} characters.")
            role[path] = value

    def _save_role(self, role: Role) -> Any:
        role["etag"] = self._world.store.next("role-etag")
        self._world.store.put_json(ROLES, role["name"], role)
        return _message(role, full=True)


def _no_role(name: str) -> ApiError:
    # Google's words, as gcloud shows them in many public scripts.
    return missing(f"The role named {name} was not found.")


def _name_of(role: Any) -> str:
    return str(role.name)


def _etag(role: Mapping[str, Any]) -> bytes:
    return int(role["etag"]).to_bytes(8, "big")


def _message(role: Role, *, full: bool) -> Any:
    return messages.Role.pb()(
        name=role["name"],
        title=role["title"],
        description=role["description"],
        included_permissions=role["included_permissions"] if full else [],
        stage=role["stage"],
        etag=_etag(role),
        deleted=role["deleted"],
    )


def _check_resource(name: str) -> None:
    """iam.proto: a full resource name, as `//cloudresourcemanager.googleapis.com/projects/P`.

    gcloud names the host that it was pointed at, with its port.
    """
    if not re.fullmatch(r"//[\w.-]+(?::\d+)?/.+", name):
        raise invalid(f"Invalid full resource name: '{name}'.")


def _predefined_message(role: PredefinedRole, *, full: bool) -> Any:
    return messages.Role.pb()(
        name=role.name,
        title=role.title,
        included_permissions=role.permissions if full else [],
        stage=messages.Role.RoleLaunchStage.GA,
        etag=b"\0",  # "AA==", that of every predefined role in the public record of them
    )
