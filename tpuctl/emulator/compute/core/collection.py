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
from tpuctl.emulator.state.errors import unsupported_field
from tpuctl.emulator.state.locations import regions, zones
from tpuctl.emulator.state.operations import Arguments, Effect
from tpuctl.emulator.state.pacific_time import pacific_text
from tpuctl.emulator.wire.registry import Caller

__all__ = [
    "Collection",
    "FixedCollection",
    "Items",
    "LabeledCollection",
    "ReadableCollection",
    "Row",
    "Rows",
    "check_name",
    "idempotent",
]

_NAME = r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?"
_NAME_OR_ID = rf"{_NAME}|[1-9][0-9]{{0,19}}"

# Never in a response, and never emulated: tags of Resource Manager, and flushing a disk's writes.
_INPUT_ONLY = frozenset(("guestFlush", "params"))

Rows = list[Row]


def check_name(name: str) -> None:
    if not re.fullmatch(_NAME, name):
        raise bad_field("resource.name", name, f"Must be a match of regex '(?:{_NAME})'")


def idempotent(
    begin: Callable[[Any, str, Any, Caller], Awaitable[Any]],
) -> Callable[[Any, Any, Caller], Awaitable[Any]]:
    """Decorator of a mutating method; it passes the full name of the resource, or of the collection
    that gets a new one, as the first argument.

    A repeated request ID returns the operation begun by the first request.
    """

    @wraps(begin)
    async def once(self: Any, request: Any, caller: Caller) -> Any:
        name = self.target_of(request)
        existing = self.context.operation_of_request(name, getattr(request, "request_id", ""))
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
    links: Sequence[str] = ()  # fields of rows with full names
    internal: Sequence[str] = ()  # fields of rows that are not part of the resource
    list_endings = ("List", "AggregatedList")  # of the messages of lists

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
        return f"{self.context.scope(request, self.scope)}/{self.plural}"

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

    def target_of(self, request: Any) -> str:
        """The full name of the request's resource, or else of its collection."""
        fields = request.DESCRIPTOR.fields_by_name
        is_named = self.field in fields or "resource" in fields
        return self.name_of(request) if is_named else self.collection_name(request)

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
        resource = {field: value for field, value in row.items() if field not in self.internal}
        resource["selfLink"] = LINK + name
        resource |= {field: LINK + row[field] for field in self.links if field in row}
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
        base, ending = self.collection_name(request), self.list_endings[0]
        message, kind = f"{self.message}{ending}", f"{self.type_of()}{ending}"
        return listed_names(request, message, kind, self.names(f"{base}/"), base, self.show_all)

    async def aggregated_list(self, request: Any, caller: Caller) -> Any:
        project, ending = self.context.project(request.project), self.list_endings[1]
        return aggregated(
            request,
            f"{self.message}{ending}",
            f"{self.type_of()}{ending}",
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


class FixedCollection(ReadableCollection):
    """Resources that Google provides: computed, not stored, in every project."""

    def name_of(self, request: Any) -> str:
        return f"{self.collection_name(request)}/{getattr(request, self.field)}"

    def names_in(self, zone: str) -> Sequence[str]:
        """The names of what a zone has."""
        raise NotImplementedError

    def names(self, prefix: str) -> Sequence[str]:
        _, project, _, zone, *_ = prefix.split("/")
        return [
            f"projects/{project}/zones/{location}/{self.plural}/{name}"
            for location in ([zone] if zone else zones())
            for name in self.names_in(location)
        ]


class Collection(ReadableCollection):
    """A kind of resource that clients create, change and delete."""

    def __init__(self, context: ComputeContext) -> None:
        super().__init__(context)
        self.effects: Mapping[str, Effect] = {
            f"{self.kind}.{verb}": effect for verb, effect in self.verbs().items()
        }

    def verbs(self) -> dict[str, Effect]:
        """The effects of its operations, by verb."""
        return {
            "insert": Effect(self.finish_insert),
            "delete": Effect(self.finish_delete),
            "patch": Effect(self.finish_patch),
        }

    @idempotent
    async def insert(self, base: str, request: Any, caller: Caller) -> Any:
        row = as_row(getattr(request, f"{self.field}_resource"))
        self.check_fields(row)
        check_name(row.get("name", ""))
        name = f"{base}/{row['name']}"
        self.require_unused_name(name)
        row = {**self.complete(name, row), "id": new_id()}
        return self.begin("insert", name, caller, {"row": row}, request.request_id)

    @idempotent
    async def delete(self, name: str, request: Any, caller: Caller) -> Any:
        self.require(name)
        self.check_deletable(name)
        return self.begin("delete", name, caller, {}, request.request_id)

    @idempotent
    async def patch(self, name: str, request: Any, caller: Caller) -> Any:
        row = self.require(name)
        changes = as_row(getattr(request, f"{self.field}_resource"))
        if changes.get("name", row["name"]) != row["name"]:
            raise bad_field("resource.name", changes["name"], "The name cannot be changed.")
        self.check_fields(changes)
        self.complete(name, {**row, **changes})
        return self.begin("patch", name, caller, {"row": changes}, request.request_id)

    def check_fields(self, row: Row) -> None:
        if self.supported is not None:
            check_supported(row, self.supported)
        for field in _INPUT_ONLY & row.keys() - (self.supported or {}).keys():
            raise unsupported_field(f"resource.{field}")

    def require_unused_name(self, name: str) -> None:
        """Refuse a name that exists or that a pending insertion will create."""
        if self.store.get(self.kind, name) is not None:
            raise already_exists(name)
        for record in self.context.registry.operations.pending(f"{self.kind}.insert"):
            if record.arguments["target"] == name:
                raise already_exists(name)

    def begin(
        self,
        verb: str,
        name: str,
        caller: Caller,
        arguments: Arguments,
        request_id: str = "",
        *,
        shown_verb: str = "",
        step: str = "",
    ) -> Any:
        """Begin an operation.

        `shown_verb` is what it calls itself, if not by its effect; `step` selects its pace.
        """
        row = arguments.get("row", {}) if verb == "insert" else self.find(name) or {}
        arguments = {"target_id": row.get("id", ""), **arguments}
        effect = f"{self.kind}.{verb}"
        operation_type = shown_verb or self.operation_type(verb, arguments)
        return self.context.begin(
            effect, operation_type, name, step or effect, caller, arguments, request_id
        )

    def operation_type(self, verb: str, arguments: Arguments) -> str:
        """What the operation calls itself, by default as its method."""
        return verb

    def complete(self, name: str, row: Row) -> Row:
        """The row with its defaults. Raises the errors that Google returns before accepting."""
        raise NotImplementedError

    def check_deletable(self, name: str) -> None:
        """Raise the error of a request to delete a resource in use."""

    def check_deletion(self, name: str) -> None:
        """Raise the error of an operation that deletes a resource in use."""

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


class LabeledCollection(Collection):
    """A kind of resource whose labels are changed by their own method."""

    labels_field = ""  # of the method's requests

    def verbs(self) -> dict[str, Effect]:
        return {**super().verbs(), "setLabels": Effect(self.finish_patch)}

    def show(self, name: str, row: Row) -> Row:
        return {**super().show(name, row), "labelFingerprint": fingerprint(row.get("labels", {}))}

    @idempotent
    async def set_labels(self, name: str, request: Any, caller: Caller) -> Any:
        """The fingerprint must match. Requests of some collections have no ID."""
        row, body = self.require(name), as_row(getattr(request, self.labels_field))
        if body.get("labelFingerprint", "") != fingerprint(row.get("labels", {})):
            raise condition_not_met(
                "Labels fingerprint either invalid or resource labels have changed"
            )
        changes = {"row": {"labels": body.get("labels", {})}}
        request_id = getattr(request, "request_id", "")
        return self.begin("setLabels", name, caller, changes, request_id)
