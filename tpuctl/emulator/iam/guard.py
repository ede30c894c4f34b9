"""Checks permissions before every handler and denies calls in the API's wording."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tpuctl.emulator.faults.fault import is_mutating
from tpuctl.emulator.faults.google_messages import storage_denied
from tpuctl.emulator.faults.traffic import Caller
from tpuctl.emulator.iam.api_access import ApiAccess, plain_denial, scopes_allow
from tpuctl.emulator.iam.method_permissions import MethodPermissions, Row
from tpuctl.emulator.iam.permission_errors import insufficient_scopes
from tpuctl.emulator.iam.required_permissions import Need, PolicyResources, text_at
from tpuctl.emulator.state.errors import ApiError
from tpuctl.emulator.state.projects import Directory
from tpuctl.emulator.state.store import Store
from tpuctl.local_cloud.defaults import DEFAULT_PROJECT, OWNER

# Arguments: email, permission, resource, and condition attributes.
Allows = Callable[[str, str, str, Mapping[str, Any]], bool]

_FIELDS = ("name", "parent", "resource", "project")
_PROJECT_PERMISSIONS = (
    "storage.buckets.list",
    "storage.buckets.create",
    "storage.buckets.enableObjectRetention",
    "resourcemanager.projects.get",
    *(f"storage.hmacKeys.{verb}" for verb in ("create", "delete", "get", "list", "update")),
)


class Guard:
    """The guard of all APIs."""

    def __init__(
        self,
        store: Store,
        projects: Directory,
        allows: Allows,
        is_unrestricted: Callable[[str], bool],
        caller: Callable[[], Caller | None],
        apis: Sequence[ApiAccess],
    ) -> None:
        """`allows` and `is_unrestricted` are the authority's; `caller` returns the caller."""
        self._store = store
        self._allows = allows
        self._is_unrestricted = is_unrestricted
        self._caller = caller
        self._apis = apis
        self._resources = PolicyResources(store, projects)
        # By an object's own access control list; set by Cloud Storage. Arguments: email,
        # permission, bucket, object.
        self.object_allows: Callable[[str, str, str, str], bool] = lambda *_: False
        self.permissions = MethodPermissions(api.package for api in apis)
        self.rules = {name: rule for api in apis for name, rule in api.rules.items()}

    def api_of(self, method: str) -> ApiAccess | None:
        """The API of a full method name; None if unknown."""
        return next((api for api in self._apis if api.has(method)), None)

    def check(self, method: str, request: Any, caller: Caller) -> None:
        """Raise an error if the caller may not call `package.Service/Method`."""
        self._check_scopes(method, caller)
        if self._is_unrestricted(caller.email):
            return
        row = self.permissions.row_of(method)
        if row is None:
            # Only the owner may call it. A test requires a row for every method.
            if caller.email != OWNER:
                raise ApiError("PERMISSION_DENIED", "The caller does not have permission")
            return
        for need in self._needs(method, row, request):
            attributes = {"resource.name": need.resource_name}
            if not self._allows(caller.email, need.permission, need.resource, attributes):
                api = self.api_of(method)
                refuse = api.refuse if api is not None else plain_denial
                raise refuse(method, need, caller.email, request)

    def _needs(self, method: str, row: Row, request: Any) -> Iterator[Need]:
        for permission in row.permissions:
            need = self._need(method, permission, row.field, request)
            if need is not None:
                yield need
        for rule in row.rules:
            yield from self.rules[rule](self._resources, request)

    def _need(self, method: str, permission: str, field: str, request: Any) -> Need | None:
        """None if the request names no resource of this cloud; its handler reports that."""
        api = self.api_of(method)
        if api is not None and api.need is not None:
            return api.need(self._resources, method, permission, request)
        texts = (text_at(request, name) for name in ((field,) if field else _FIELDS))
        resource_name = next((text for text in texts if text), "")
        resource = self._resources.resolve(resource_name)
        return Need(permission, resource, resource_name) if resource else None

    def _check_scopes(self, method: str, caller: Caller) -> None:
        api, mutating = self.api_of(method), is_mutating(method)
        if caller.scopes and not scopes_allow(caller.scopes, api, method, mutating=mutating):
            raise insufficient_scopes(method, api.host if api is not None else "")

    # Cloud Storage.

    def check_storage(self, method: str, caller: Caller, bucket: str, name: str) -> None:
        """Like `check`, for a Cloud Storage method such as `storage.objects.get`, on a bucket or,
        for methods without a bucket, on a project."""
        self._check_scopes(method, caller)
        if self._is_unrestricted(caller.email):
            return
        row = self.permissions.row_of(method)
        for permission in row.permissions if row is not None else ():
            self._require(caller, permission, bucket, name)

    def require(self, permission: str, bucket: str, name: str = "") -> None:
        """Raise an error unless the current caller has the permission; for storage handlers."""
        caller = self._caller()
        if caller is not None and not self._is_unrestricted(caller.email):
            self._require(caller, permission, bucket, name)

    def require_in_project(self, permission: str, project: str) -> None:
        """Like `require`, for what only its project has a policy, as a deleted bucket."""
        caller = self._caller()
        if caller is None or self._is_unrestricted(caller.email):
            return
        resource = self._resources.project(project)
        if not self._allows(caller.email, permission, resource, {}):
            raise storage_denied(caller.email, permission)

    def _require(self, caller: Caller, permission: str, bucket: str, name: str) -> None:
        if permission in _PROJECT_PERMISSIONS:
            # Clients in emulator mode send a placeholder project.
            project = DEFAULT_PROJECT if bucket in ("", "<none>") else bucket
            resource = self._resources.project(project)
        elif self._store.get("bucket", bucket) is None:
            return  # the handler reports a missing bucket
        else:
            resource = f"buckets/{bucket}"
        path = f"projects/_/{resource}" if resource.startswith("buckets/") else resource
        attributes = {
            "resource.name": f"{path}/objects/{name}" if name else path,
            "resource.service": "storage.googleapis.com",
            "resource.type": f"storage.googleapis.com/{'Object' if name else 'Bucket'}",
        }
        if not self._allows(caller.email, permission, resource, attributes) and not (
            name and self.object_allows(caller.email, permission, bucket, name)
        ):
            raise storage_denied(caller.email, permission)
