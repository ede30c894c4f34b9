"""Stands before every handler: a caller who may not is refused, in the words of the API."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tpuctl.emulator.faults.fault import is_mutating
from tpuctl.emulator.faults.google_messages import storage_denied
from tpuctl.emulator.faults.traffic import Caller
from tpuctl.emulator.iam.api_access import ApiAccess, denied_plainly, suffices
from tpuctl.emulator.iam.method_permissions import MethodPermissions, Row
from tpuctl.emulator.iam.refusals import out_of_scope
from tpuctl.emulator.iam.required_permissions import Need, Places, text_at
from tpuctl.emulator.state.errors import ApiError
from tpuctl.emulator.state.projects import DEFAULT_PROJECT, OWNER, Directory
from tpuctl.emulator.state.store import Store

__all__ = ["Guard"]

# By e-mail, permission, resource, and the facts that conditions may ask about.
Allows = Callable[[str, str, str, Mapping[str, Any]], bool]

_FIELDS = ("name", "parent", "resource", "project")
_OF_PROJECTS = (
    "storage.buckets.list",
    "storage.buckets.create",
    "resourcemanager.projects.get",
)


class Guard:
    """One for all APIs."""

    def __init__(
        self,
        store: Store,
        projects: Directory,
        allows: Allows,
        is_limitless: Callable[[str], bool],
        caller: Callable[[], Caller | None],
        apis: Sequence[ApiAccess],
    ) -> None:
        """`allows` and `is_limitless` are the authority's; `caller` tells whose call it is in."""
        self._store = store
        self._allows = allows
        self._is_limitless = is_limitless
        self._caller = caller
        self._apis = apis
        self._places = Places(store, projects)
        self.permissions = MethodPermissions(api.package for api in apis)
        self.rules = {name: rule for api in apis for name, rule in api.rules.items()}

    def api_of(self, method: str) -> ApiAccess | None:
        """The API of a method given in full; None for one that is not known."""
        return next((api for api in self._apis if api.has(method)), None)

    def check(self, method: str, request: Any, caller: Caller) -> None:
        """Refuse a call, `package.Service/Method`, that its caller may not make."""
        self._check_scopes(method, caller)
        if self._is_limitless(caller.email):
            return
        row = self.permissions.row_of(method)
        if row is None:
            # Not known to be harmless. A test sees to it that there is none such.
            if caller.email != OWNER:
                raise ApiError("PERMISSION_DENIED", "The caller does not have permission")
            return
        for need in self._needs(method, row, request):
            facts = {"resource.name": need.told}
            if not self._allows(caller.email, need.permission, need.resource, facts):
                api = self.api_of(method)
                refuse = api.refuse if api is not None else denied_plainly
                raise refuse(method, need, caller.email, request)

    def _needs(self, method: str, row: Row, request: Any) -> Iterator[Need]:
        for permission in row.permissions:
            need = self._need(method, permission, row.field, request)
            if need is not None:
                yield need
        for rule in row.rules:
            yield from self.rules[rule](self._places, request)

    def _need(self, method: str, permission: str, field: str, request: Any) -> Need | None:
        """None where the request names nothing of this cloud: that is for its handler to say."""
        api = self.api_of(method)
        if api is not None and api.need is not None:
            return api.need(self._places, method, permission, request)
        texts = (text_at(request, one) for one in ((field,) if field else _FIELDS))
        told = next((text for text in texts if text), "")
        resource = self._places.of(told)
        return Need(permission, resource, told) if resource else None

    def _check_scopes(self, method: str, caller: Caller) -> None:
        api, mutating = self.api_of(method), is_mutating(method)
        if caller.scopes and not suffices(caller.scopes, api, method, mutating=mutating):
            raise out_of_scope(method, api.host if api is not None else "")

    # Cloud Storage.

    def check_storage(self, method: str, caller: Caller, bucket: str, name: str) -> None:
        """The same for a method of Cloud Storage, `storage.objects.get`, on a bucket that is there
        or, for those about no bucket, on a project."""
        self._check_scopes(method, caller)
        if self._is_limitless(caller.email):
            return
        row = self.permissions.row_of(method)
        for permission in row.permissions if row is not None else ():
            self._require(caller, permission, bucket, name)

    def require(self, permission: str, bucket: str, name: str = "") -> None:
        """Refuse unless the caller of the present call may; from where the object is known."""
        caller = self._caller()
        if caller is not None and not self._is_limitless(caller.email):
            self._require(caller, permission, bucket, name)

    def _require(self, caller: Caller, permission: str, bucket: str, name: str) -> None:
        if permission in _OF_PROJECTS:
            # Clients in emulator mode name none that exists.
            known = DEFAULT_PROJECT if bucket in ("", "<none>") else bucket
            resource = self._places.project(known)
        elif self._store.get("bucket", bucket) is None:
            return  # what is not there is for the handler to say
        else:
            resource = f"buckets/{bucket}"
        path = f"projects/_/{resource}" if resource.startswith("buckets/") else resource
        facts = {
            "resource.name": f"{path}/objects/{name}" if name else path,
            "resource.service": "storage.googleapis.com",
            "resource.type": f"storage.googleapis.com/{'Object' if name else 'Bucket'}",
        }
        if not self._allows(caller.email, permission, resource, facts):
            raise storage_denied(caller.email, permission)
