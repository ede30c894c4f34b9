"""What the resources of Compute Engine that are kept as JSON have in common."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import wraps
from typing import Any

from tpuctl.emulator.compute.context import ComputeContext, Items, Row
from tpuctl.emulator.compute.errors import (
    already_exists,
    bad_field,
    condition_not_met,
    failed,
    not_found,
)
from tpuctl.emulator.compute.lists import aggregated, listed_names
from tpuctl.emulator.compute.messages import LINK, as_row, message_of
from tpuctl.emulator.state.locations import known_region, known_zone, regions, zones
from tpuctl.emulator.state.operations import Arguments, Effect
from tpuctl.emulator.state.projects import now_text
from tpuctl.emulator.wire.registry import Caller

__all__ = ["Collection", "Items", "Row", "Rows", "asked_once", "fingerprint", "name_must_fit"]

_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")

Rows = list[Row]


def fingerprint(value: Any) -> str:
    """A hash that changes with the value, in base64 as Google's are."""
    digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()
    return base64.urlsafe_b64encode(digest[:8]).decode()


def name_must_fit(name: str) -> None:
    if not _NAME.fullmatch(name):
        why = "Must be a match of regex '(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)'"
        raise bad_field("resource.name", name, why)


def asked_once(
    begin: Callable[[Any, str, Any, Caller], Awaitable[Any]],
) -> Callable[[Any, Any, Caller], Awaitable[Any]]:
    """A method that changes the resource named by its request, which it is given by name as well.

    A request that was sent before, by its id, is answered with the operation begun then.
    """

    @wraps(begin)
    async def once(self: Any, request: Any, caller: Caller) -> Any:
        name = self.name_of(request)
        again = self.context.begun_before(name, request.request_id)
        return await begin(self, name, request, caller) if again is None else again

    return once


class Collection:
    """One kind of resource, kept under its full name: `projects/P/zones/Z/disks/D`.

    References to others are kept in that form too; `show` makes links of them.
    """

    kind = ""  # of the store, "compute.networks"
    message = ""  # "Network"
    plural = ""  # "networks"
    field = ""  # "network": the request's field and, with "_resource", its body
    scope = "global"  # or "zones", "regions"

    def __init__(self, context: ComputeContext) -> None:
        self.context = context
        self.store = context.world.store
        self.effects: Mapping[str, Effect] = {
            f"{self.kind}.insert": Effect(self.inserted),
            f"{self.kind}.delete": Effect(self.deleted),
            f"{self.kind}.patch": Effect(self.patched),
            f"{self.kind}.setLabels": Effect(self.patched),
        }

    # Names.

    @classmethod
    def type_of(cls) -> str:
        """What `kind` says of its resources: the message's name in camel case.

        "compute#resourcePolicy" of ResourcePolicy, whose field is resource_policy.
        """
        return f"compute#{cls.message[:1].lower()}{cls.message[1:]}"

    def base_of(self, request: Any) -> str:
        """What the names of the request's scope begin with, up to its collection."""
        project = self.context.project(request.project)
        if self.scope == "zones":
            return f"projects/{project}/zones/{known_zone(request.zone)}/{self.plural}"
        if self.scope == "regions":
            return f"projects/{project}/regions/{known_region(request.region)}/{self.plural}"
        return f"projects/{project}/global/{self.plural}"

    def name_of(self, request: Any) -> str:
        given = getattr(request, self.field, "") or getattr(request, "resource", "")
        return f"{self.base_of(request)}/{given}"

    # What is there.

    def find(self, name: str) -> Row | None:
        return self.context.find(self.kind, name)

    def must(self, name: str) -> Row:
        found = self.find(name)
        if found is None:
            raise not_found(name)
        return found

    def names(self, prefix: str) -> Sequence[str]:
        """Full names, in order."""
        return self.context.names(self.kind, prefix)

    def items(self, prefix: str) -> Items:
        """Full names and rows, in order of name."""
        return self.context.items(self.kind, prefix)

    def show(self, name: str, row: Row) -> Row:
        """The row with what is not stored: links."""
        shown = {**row, "selfLink": LINK + name}
        scope = name.rsplit("/", 2)[0]
        if self.scope != "global":
            shown[self.scope.removesuffix("s")] = LINK + scope
        return shown

    def shown(self, names: Sequence[str]) -> Rows:
        """Those of these names as shown: for what is cheaper to find out once than for each."""
        return [self.show(name, self.must(name)) for name in names]

    # Reading.

    async def get(self, request: Any, caller: Caller) -> Any:
        name = self.name_of(request)
        return message_of(self.message, self.show(name, self.must(name)))

    async def list(self, request: Any, caller: Caller) -> Any:
        base = self.base_of(request)
        names, kind = self.names(f"{base}/"), f"{self.type_of()}List"
        return listed_names(request, f"{self.message}List", kind, names, base, self.shown)

    async def aggregated_list(self, request: Any, caller: Caller) -> Any:
        project = self.context.project(request.project)
        places = zones() if self.scope == "zones" else regions()
        return aggregated(
            request,
            f"{self.message}AggregatedList",
            f"{self.type_of()}AggregatedList",
            self.everywhere(project),
            [f"{self.scope}/{place}" for place in places],
            self.plural,
            f"projects/{project}/aggregated/{self.plural}",
            self.shown,
        )

    def everywhere(self, project: str) -> Sequence[str]:
        """The full names of all of a project that the list over scopes has."""
        return self.names(f"projects/{project}/{self.scope}/")

    # Changing.

    async def insert(self, request: Any, caller: Caller) -> Any:
        base = self.base_of(request)
        again = self.context.begun_before(base, request.request_id)
        if again is not None:
            return again
        row = as_row(getattr(request, f"{self.field}_resource"))
        name_must_fit(row.get("name", ""))
        name = f"{base}/{row['name']}"
        self.refuse_second(name)
        row = self.complete(name, row)
        return self.begin("insert", name, caller, {"row": row}, request.request_id)

    @asked_once
    async def delete(self, name: str, request: Any, caller: Caller) -> Any:
        self.must(name)
        return self.begin("delete", name, caller, {}, request.request_id)

    @asked_once
    async def patch(self, name: str, request: Any, caller: Caller) -> Any:
        row = self.must(name)
        changes = as_row(getattr(request, f"{self.field}_resource"))
        if changes.get("name", row["name"]) != row["name"]:
            raise bad_field("resource.name", changes["name"], "The name cannot be changed.")
        self.complete(name, {**row, **changes})
        return self.begin("patch", name, caller, {"row": changes}, request.request_id)

    def refuse_second(self, name: str) -> None:
        """A name is taken from the moment that an insertion has begun."""
        if self.store.get(self.kind, name) is not None:
            raise already_exists(name)
        for record in self.context.world.operations.pending(f"{self.kind}.insert"):
            if record.arguments["target"] == name:
                raise already_exists(name)

    def begin_labels(self, name: str, wanted: Any, caller: Caller, request_id: str) -> Any:
        """Start the change of labels that a client asked for; its fingerprint must fit."""
        again = self.context.begun_before(name, request_id)
        if again is not None:
            return again
        row, asked = self.must(name), as_row(wanted)
        if asked.get("labelFingerprint", "") != fingerprint(row.get("labels", {})):
            raise condition_not_met(
                "Labels fingerprint either invalid or resource labels have changed"
            )
        changes = {"row": {"labels": asked.get("labels", {})}}
        return self.begin("setLabels", name, caller, changes, request_id)

    def begin(
        self, verb: str, name: str, caller: Caller, arguments: Arguments, request_id: str = ""
    ) -> Any:
        return self.context.begin(
            f"{self.kind}.{verb}", verb, name, self.kind, caller, arguments, request_id
        )

    def complete(self, name: str, row: Row) -> Row:
        """The row with its defaults; refuses what Google refuses before it accepts."""
        raise NotImplementedError

    def check_deletion(self, name: str) -> None:
        """Refuse while something needs the resource."""

    # What ends an operation.

    def inserted(self, arguments: Arguments) -> None:
        name = arguments["target"]
        if self.store.get(self.kind, name) is not None:
            raise failed("RESOURCE_ALREADY_EXISTS", f"The resource '{name}' already exists", 409)
        self.store.put_json(self.kind, name, self.born(arguments["row"]))

    def born(self, row: Row) -> Row:
        """A row with what every new resource is given."""
        return {
            **row,
            "kind": self.type_of(),
            # gcloud keeps host keys by it: one local cloud must not have another's.
            "id": str(10**18 + secrets.randbelow(8 * 10**18)),
            "creationTimestamp": now_text(),
        }

    def deleted(self, arguments: Arguments) -> None:
        name = arguments["target"]
        self.check_deletion(name)
        if not self.store.delete(self.kind, name):
            raise failed("RESOURCE_NOT_FOUND", f"The resource '{name}' was not found", 404)

    def patched(self, arguments: Arguments) -> None:
        name = arguments["target"]
        row = self.find(name)
        if row is None:
            raise failed("RESOURCE_NOT_FOUND", f"The resource '{name}' was not found", 404)
        self.store.put_json(self.kind, name, {**row, **arguments["row"]})
