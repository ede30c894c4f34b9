"""Stands before every handler: a caller who may not is refused, in the words of the API."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tpuctl.emulator.faults.fault import is_mutating
from tpuctl.emulator.faults.google_messages import storage_denied
from tpuctl.emulator.faults.traffic import Caller, Traffic
from tpuctl.emulator.iam.access_scopes import suffices
from tpuctl.emulator.iam.additional_permissions import Rules
from tpuctl.emulator.iam.authority import Authority
from tpuctl.emulator.iam.method_permissions import Row, row_of
from tpuctl.emulator.iam.refusals import out_of_scope, refused
from tpuctl.emulator.iam.required_permissions import Need, Places, text_at
from tpuctl.emulator.state.errors import ApiError
from tpuctl.emulator.state.projects import DEFAULT_PROJECT, OWNER, Directory
from tpuctl.emulator.state.store import Store

__all__ = ["Guard"]

_FIELDS = ("name", "parent", "resource", "project")
_OF_PROJECTS = (
    "storage.buckets.list",
    "storage.buckets.create",
    "resourcemanager.projects.get",
)
_COMPUTE = "google.cloud.compute.v1."


class Guard:
    """One for all APIs."""

    def __init__(
        self, store: Store, projects: Directory, authority: Authority, traffic: Traffic
    ) -> None:
        self._store = store
        self._authority = authority
        self._traffic = traffic
        self._places = Places(store, projects)
        self._rules = Rules(store, self._places)

    def check(self, method: str, request: Any, caller: Caller) -> None:
        """Refuse a call, `package.Service/Method`, that its caller may not make."""
        if caller.scopes and not suffices(caller.scopes, method, mutating=is_mutating(method)):
            raise out_of_scope(method)
        if self._authority.is_limitless(caller.email):
            return
        row = row_of(method)
        if row is None:
            # Not known to be harmless. A test sees to it that there is none such.
            if caller.email != OWNER:
                raise ApiError("PERMISSION_DENIED", "The caller does not have permission")
            return
        for need in self._needs(method, row, request):
            facts = {"resource.name": need.told}
            if not self._authority.allows(caller.email, need.permission, need.resource, facts):
                raise refused(method, need, caller.email, request)

    def _needs(self, method: str, row: Row, request: Any) -> Iterator[Need]:
        for permission in row.permissions:
            need = self._need(method, permission, row.field, request)
            if need is not None:
                yield need
        for rule in row.rules:
            yield from self._rules.needs(rule, request)

    def _need(self, method: str, permission: str, field: str, request: Any) -> Need | None:
        """None where the request names nothing of this cloud: that is for its handler to say."""
        if method.startswith(_COMPUTE):
            if not request.project or not self._places.is_ours(request.project):
                return None  # public images are everybody's
            project = self._places.project(request.project)
            return Need(permission, project, _compute_name(method, project, request))
        texts = (text_at(request, one) for one in ((field,) if field else _FIELDS))
        told = next((text for text in texts if text), "")
        resource = self._places.of(told)
        return Need(permission, resource, told) if resource else None

    # Cloud Storage.

    def check_storage(self, method: str, caller: Caller, bucket: str, name: str) -> None:
        """The same for a method of Cloud Storage, `storage.objects.get`, on a bucket that is there
        or, for those about no bucket, on a project."""
        if caller.scopes and not suffices(caller.scopes, method, mutating=is_mutating(method)):
            raise out_of_scope(method)
        if self._authority.is_limitless(caller.email):
            return
        row = row_of(method)
        for permission in row.permissions if row is not None else ():
            self._require(caller, permission, bucket, name)

    def require(self, permission: str, bucket: str, name: str = "") -> None:
        """Refuse unless the caller of the present call may; from where the object is known."""
        caller = self._traffic.caller()
        if caller is not None and not self._authority.is_limitless(caller.email):
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
        if not self._authority.allows(caller.email, permission, resource, facts):
            raise storage_denied(caller.email, permission)


def _compute_name(method: str, project: str, request: Any) -> str:
    """As refusals name it: the resource, or for lists the project."""
    collection = method.removeprefix(_COMPUTE).partition("/")[0]
    words = re.findall("[A-Z][a-z]+", collection)
    plain = [word.lower() for word in words if word not in ("Global", "Zone", "Region")]
    singular = re.sub(r"(?<=s)es$|s$", "", "_".join(plain))
    if singular == "project":
        return project
    own = text_at(request, singular) or text_at(request, "resource")
    own = own or text_at(request, "family") or text_at(request, f"{singular}_resource.name")
    if not own:
        return project
    place = "global"
    for kind in ("zone", "region"):
        if text_at(request, kind):
            place = f"{kind}s/{text_at(request, kind)}"
    first, *rest = plain
    return f"{project}/{place}/{first}{''.join(word.capitalize() for word in rest)}/{own}"
