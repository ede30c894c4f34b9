"""Base class of Compute Engine collections stored as JSON rows."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import wraps
from typing import Any

from tpuctl.emulator.compute.core.context import ComputeContext, Items, Row, new_id
from tpuctl.emulator.compute.core.errors import (
    already_exists,
    bad_field,
    condition_not_met,
    failed,
    not_found,
)
from tpuctl.emulator.compute.core.fingerprint import fingerprint
from tpuctl.emulator.compute.core.lists import aggregated, listed_names
from tpuctl.emulator.compute.core.messages import LINK, as_row, message_of
from tpuctl.emulator.compute.core.supported_fields import Fields, check_supported
from tpuctl.emulator.state.locations import check_region, check_zone, regions, zones
from tpuctl.emulator.state.operations import Arguments, Effect
from tpuctl.emulator.state.pacific_time import pacific_text
from tpuctl.emulator.wire.registry import Caller

__all__ = [
    "Collection",
    "Items",
    "ReadableCollection",
    "Row",
    "Rows",
    "check_name",
    "idempotent",
]

_NAME = r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?"
_NAME_OR_ID = rf"{_NAME}|[1-9][0-9]{{0,19}}"

Rows = list[Row]


def check_name(name: str) -> None:
    if not re.fullmatch(_NAME, name):
        raise bad_field("resource.name", name, f"Must be a match of regex '(?:{_NAME})'")


def idempotent(
    begin: Callable[[Any, str, Any, Caller], Awaitable[Any]],
) -> Callable[[Any, Any, Caller], Awaitable[Any]]:
    """Decorator of a mutating method; it passes the full resource name as the first argument.

    A repeated request ID returns the operation begun by the first request.
    """

    @wraps(begin)
    async def once(self: Any, request: Any, caller: Caller) -> Any:
        name = self.name_of(request)
        existing = self.context.operation_of_request(name, request.request_id)
        return await begin(self, name, request, caller) if existing is None else existing

    return once


class ReadableCollection:
    """One kind of resource, by full name: `projects/P/zones/Z/disks/D`.

    References to other resources are stored as full names too; `show` turns them into links.
    """

    kind = ""  # kind in the store, "compute.networks"
    message = ""  # "Network"
    plural = ""  # "networks"
    field = ""  # "network": the request's field; its body is "network_resource"
    scope = "global"  # or "zones", "regions"
    supported: Fields | None = None  # fields of requests; None: all, and they are kept

    def __init__(self, context: ComputeContext) -> None:
        self.context = context
        self.store = context.registry.store

    # Names.

    @classmethod
    def type_of(cls) -> str:
        """The value of `kind` in its resources: the message's name in camel case.

        For example "compute#resourcePolicy" for ResourcePolicy, whose field is resource_policy.
        """
        return f"compute#{cls.message[:1].lower()}{cls.message[1:]}"

    def collection_name(self, request: Any) -> str:
        """The full name of the collection in the request's scope."""
        project = self.context.project(request.project)
        if self.scope == "zones":
            return f"projects/{project}/zones/{check_zone(request.zone)}/{self.plural}"
        if self.scope == "regions":
            return f"projects/{project}/regions/{check_region(request.region)}/{self.plural}"
        return f"projects/{project}/global/{self.plural}"

    def name_of(self, request: Any) -> str:
        """The full name of the request's resource, which is given by name or by ID.

        Error text of a wrong name: rapid7/insightconnect-plugins#751.
        """
        base = self.collection_name(request)
        field = self.field if getattr(request, self.field, "") else "resource"
        resource_id = str(getattr(request, field))
        if not re.fullmatch(_NAME_OR_ID, resource_id):
            raise bad_field(field, resource_id, f"Must be a match of regex '{_NAME_OR_ID}'")
        if resource_id.isdigit():
            for name, row in self.items(f"{base}/"):
                if row["id"] == resource_id:
                    return name
        return f"{base}/{resource_id}"

    # Lookup.

    def find(self, name: str) -> Row | None:
        return self.context.find(self.kind, name)

    def require(self, name: str) -> Row:
        row = self.find(name)
        if row is None:
            raise not_found(name)
        return row

    def names(self, prefix: str) -> Sequence[str]:
        """Full names, sorted."""
        return self.context.names(self.kind, prefix)

    def items(self, prefix: str) -> Items:
        """Full names and rows, sorted by name."""
        return self.context.items(self.kind, prefix)

    def show(self, name: str, row: Row) -> Row:
        """The resource as returned to clients: the row plus its links."""
        resource = {**row, "selfLink": LINK + name}
        scope = name.rsplit("/", 2)[0]
        if self.scope != "global":
            resource[self.scope.removesuffix("s")] = LINK + scope
        return resource

    def show_all(self, names: Sequence[str]) -> Rows:
        """`show` for several names; override it where shared data can be computed once."""
        return [self.show(name, self.require(name)) for name in names]

    # Reading.

    async def get(self, request: Any, caller: Caller) -> Any:
        name = self.name_of(request)
        return message_of(self.message, self.show(name, self.require(name)))

    async def list(self, request: Any, caller: Caller) -> Any:
        base = self.collection_name(request)
        names, kind = self.names(f"{base}/"), f"{self.type_of()}List"
        return listed_names(request, f"{self.message}List", kind, names, base, self.show_all)

    async def aggregated_list(self, request: Any, caller: Caller) -> Any:
        project = self.context.project(request.project)
        return aggregated(
            request,
            f"{self.message}AggregatedList",
            f"{self.type_of()}AggregatedList",
            self.all_names(project),
            self.scopes(),
            self.plural,
            f"projects/{project}/aggregated/{self.plural}",
            self.show_all,
        )

    def scopes(self) -> Sequence[str]:
        """The scopes of the aggregated list."""
        places = zones() if self.scope == "zones" else regions()
        return [f"{self.scope}/{location}" for location in places]

    def all_names(self, project: str) -> Sequence[str]:
        """The full names of a project's resources in the aggregated list."""
        return self.names(f"projects/{project}/{self.scope}/")


class Collection(ReadableCollection):
    """A kind of resource that clients create, change and delete."""

    def __init__(self, context: ComputeContext) -> None:
        super().__init__(context)
        self.effects: Mapping[str, Effect] = {
            f"{self.kind}.insert": Effect(self.finish_insert),
            f"{self.kind}.delete": Effect(self.finish_delete),
            f"{self.kind}.patch": Effect(self.finish_patch),
            f"{self.kind}.setLabels": Effect(self.finish_patch),
        }

    async def insert(self, request: Any, caller: Caller) -> Any:
        base = self.collection_name(request)
        existing = self.context.operation_of_request(base, request.request_id)
        if existing is not None:
            return existing
        row = as_row(getattr(request, f"{self.field}_resource"))
        if self.supported is not None:
            check_supported(row, self.supported)
        check_name(row.get("name", ""))
        name = f"{base}/{row['name']}"
        self.require_unused_name(name)
        row = {**self.complete(name, row), "id": new_id()}
        return self.begin("insert", name, caller, {"row": row}, request.request_id)

    @idempotent
    async def delete(self, name: str, request: Any, caller: Caller) -> Any:
        self.require(name)
        return self.begin("delete", name, caller, {}, request.request_id)

    @idempotent
    async def patch(self, name: str, request: Any, caller: Caller) -> Any:
        row = self.require(name)
        changes = as_row(getattr(request, f"{self.field}_resource"))
        if changes.get("name", row["name"]) != row["name"]:
            raise bad_field("resource.name", changes["name"], "The name cannot be changed.")
        self.complete(name, {**row, **changes})
        return self.begin("patch", name, caller, {"row": changes}, request.request_id)

    def require_unused_name(self, name: str) -> None:
        """Refuse a name that exists or that a pending insertion will create."""
        if self.store.get(self.kind, name) is not None:
            raise already_exists(name)
        for record in self.context.registry.operations.pending(f"{self.kind}.insert"):
            if record.arguments["target"] == name:
                raise already_exists(name)

    def begin_labels(self, name: str, labels_request: Any, caller: Caller, request_id: str) -> Any:
        """Begin setLabels; the fingerprint must match."""
        existing = self.context.operation_of_request(name, request_id)
        if existing is not None:
            return existing
        row, body = self.require(name), as_row(labels_request)
        if body.get("labelFingerprint", "") != fingerprint(row.get("labels", {})):
            raise condition_not_met(
                "Labels fingerprint either invalid or resource labels have changed"
            )
        changes = {"row": {"labels": body.get("labels", {})}}
        return self.begin("setLabels", name, caller, changes, request_id)

    def begin(
        self, verb: str, name: str, caller: Caller, arguments: Arguments, request_id: str = ""
    ) -> Any:
        row = arguments.get("row", {}) if verb == "insert" else self.find(name) or {}
        arguments = {**arguments, "target_id": row.get("id", "")}
        return self.context.begin(
            f"{self.kind}.{verb}",
            self.operation_type(verb, arguments),
            name,
            f"{self.kind}.{verb}",
            caller,
            arguments,
            request_id,
        )

    def operation_type(self, verb: str, arguments: Arguments) -> str:
        """What the operation calls itself, by default as its method."""
        return verb

    def complete(self, name: str, row: Row) -> Row:
        """The row with its defaults. Raises the errors that Google returns before accepting."""
        raise NotImplementedError

    def check_deletion(self, name: str) -> None:
        """Raise an error if the resource is in use."""

    # Effects: finish an operation.

    def finish_insert(self, arguments: Arguments) -> None:
        name = arguments["target"]
        if self.store.get(self.kind, name) is not None:
            raise failed("RESOURCE_ALREADY_EXISTS", f"The resource '{name}' already exists", 409)
        self.store.put_json(self.kind, name, self.with_identity(arguments["row"]))

    def with_identity(self, row: Row) -> Row:
        """A new row with its kind, ID and creation time."""
        return {
            **row,
            "kind": self.type_of(),
            "id": row.get("id") or new_id(),
            "creationTimestamp": pacific_text(),
        }

    def finish_delete(self, arguments: Arguments) -> None:
        name = arguments["target"]
        self.check_deletion(name)
        if not self.store.delete(self.kind, name):
            raise failed("RESOURCE_NOT_FOUND", f"The resource '{name}' was not found", 404)

    def finish_patch(self, arguments: Arguments) -> None:
        name = arguments["target"]
        row = self.find(name)
        if row is None:
            raise failed("RESOURCE_NOT_FOUND", f"The resource '{name}' was not found", 404)
        self.store.put_json(self.kind, name, {**row, **arguments["row"]})
