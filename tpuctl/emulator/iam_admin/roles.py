"""IAM Admin v1: predefined and custom roles, and known permissions.

IDs of deleted roles stay reserved; Google frees them after 37 days.
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
from tpuctl.emulator.wire.paging import requested_page
from tpuctl.emulator.wire.registry import Caller, Service

_ROLE_ID = re.compile(r"[a-zA-Z0-9_.]{3,64}")
_NAME = re.compile(r"((?:projects|organizations)/[^/]+)/roles/([^/]+)")
_FIELDS = ("title", "description", "included_permissions", "stage")
_MAX_LENGTHS = {"title": 100, "description": 300}

Role = dict[str, Any]


class RoleHandlers(Service):
    """Handlers of google.iam.admin.v1.IAM for roles."""

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
        existing = self._registry.store.get_json(ROLES, name)
        if existing is not None and existing["deleted"]:
            # From DataBiosphere/azul#4390 and many others.
            raise ApiError(
                "FAILED_PRECONDITION",
                f"You can't create a role_id ({role_id}) which has been marked for deletion.",
            )
        if existing is not None:
            raise ApiError("ALREADY_EXISTS", f"A role named {role_id} in {parent} already exists.")
        role: Role = {"name": name, "deleted": False}
        role["created_at"] = time.time()
        delay = self._registry.pace.seconds("identity.roles.visible")
        role["visible_at"] = role["created_at"] + delay
        self._fill_role(role, request.role, _FIELDS)
        return self._save_role(role)

    async def get_role(self, request: Any, caller: Caller) -> Any:
        """Deleted roles are returned too, marked as deleted."""
        predefined = predefined_roles().get(request.name)
        if predefined is not None:
            return _predefined_message(predefined, full=True)
        if request.name.startswith("roles/"):
            raise _no_role(request.name)
        return _message(self._find_role(request.name), full=True)

    async def list_roles(self, request: Any, caller: Caller) -> Any:
        """Predefined roles without a parent, otherwise the parent's custom roles."""
        full = request.view == messages.RoleView.FULL
        roles: list[Any] = []
        if request.parent:
            parent = self._parent(request.parent)
            roles = [
                _message(role, full=full)
                for role in self._registry.store.list_json(ROLES, f"{parent}/roles/")
                if request.show_deleted or not role["deleted"]
            ]
        else:
            roles = [_predefined_message(role, full=full) for role in predefined_roles().values()]
        rows, token = requested_page(request, roles, default_size=300)
        return messages.ListRolesResponse.pb()(roles=rows, next_page_token=token)

    async def update_role(self, request: Any, caller: Caller) -> Any:
        role = self._find_role(request.name)
        self._check_etag(role, request.role.etag)
        if role["deleted"]:
            # The wording is a guess, after that of creation and deletion.
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
        """Can be undone with undelete; bindings to the role stay but grant nothing."""
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
            raise ApiError(  # a guess, after the wording of deletion
                "FAILED_PRECONDITION",
                f"You can't undelete role_id ({request.name}) as it is not deleted.",
            )
        role["deleted"] = False
        return self._save_role(role)

    async def query_testable_permissions(self, request: Any, caller: Caller) -> Any:
        """The permissions known here, a subset of Google's."""
        _check_resource(request.full_resource_name)
        in_project = "/projects/" in request.full_resource_name
        names = known_permissions(for_projects=in_project)
        rows, token = requested_page(request, names, default_size=100)
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
        roles = [_predefined_message(role, full=full) for role in predefined_roles().values()]
        project = re.search(r"/(projects/[^/]+)$", request.full_resource_name)
        if project is not None:
            custom = self._registry.store.list_json(ROLES, f"{self._parent(project[1])}/roles/")
            roles += [_message(role, full=full) for role in custom if not role["deleted"]]
        rows, token = requested_page(request, roles, default_size=300)
        return messages.QueryGrantableRolesResponse.pb()(roles=rows, next_page_token=token)

    def _parent(self, name: str) -> str:
        """The parent's canonical name, with the project's ID."""
        kind, _, rest = name.partition("/")
        if kind == "projects" and rest:
            project = self._registry.projects.require(rest, "iam.googleapis.com")
            return f"projects/{project['id']}"
        if name == ORGANIZATION:
            return name
        if kind == "organizations":
            raise ApiError("PERMISSION_DENIED", "The caller does not have permission")
        raise invalid(f"Invalid parent {name!r}.")

    def _find_role(self, name: str) -> Role:
        match = _NAME.fullmatch(name)
        if match is None or not _ROLE_ID.fullmatch(match[2]):
            # From GoogleCloudPlatform/k8s-config-connector#210.
            raise invalid(
                'The role name must be in the form "roles/{role}", '
                '"organizations/{organization_id}/roles/{role}", or '
                '"projects/{project_id}/roles/{role}".'
            )
        role = self._registry.store.get_json(ROLES, f"{self._parent(match[1])}/roles/{match[2]}")
        if role is None:
            raise _no_role(name)
        return role

    def _check_etag(self, role: Role, etag: bytes) -> None:
        if etag and etag != _etag(role):
            raise ApiError(  # a guess, after the wording of policies
                "ABORTED",
                "There were concurrent changes to the role. Please retry the whole "
                "read-modify-write with exponential backoff.",
            )

    def _fill_role(self, role: Role, body: Any, paths: Sequence[str]) -> None:
        for path in paths:
            value = getattr(body, path)
            if path == "included_permissions":
                in_project = role["name"].startswith("projects/")
                check_for_role(value, in_project=in_project)
                value = sorted({*value})
            elif path in _MAX_LENGTHS and len(value) > _MAX_LENGTHS[path]:
                raise invalid(f"The role's {path} is longer than {_MAX_LENGTHS[path]} characters.")
            role[path] = value

    def _save_role(self, role: Role) -> Any:
        role["etag"] = self._registry.store.next("role-etag")
        self._registry.store.put_json(ROLES, role["name"], role)
        return _message(role, full=True)


def _no_role(name: str) -> ApiError:
    # Google's wording, as gcloud prints it in many public scripts.
    return missing(f"The role named {name} was not found.")


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
    """iam.proto: a full resource name, for example
    `//cloudresourcemanager.googleapis.com/projects/P`.

    For gcloud, the host is that of its endpoint, with the port.
    """
    if not re.fullmatch(r"//[\w.-]+(?::\d+)?/.+", name):
        raise invalid(f"Invalid full resource name: '{name}'.")


def _predefined_message(role: PredefinedRole, *, full: bool) -> Any:
    return messages.Role.pb()(
        name=role.name,
        title=role.title,
        included_permissions=role.permissions if full else [],
        stage=messages.Role.RoleLaunchStage.GA,
        etag=b"\0",  # "AA==", as in public listings of predefined roles
    )
