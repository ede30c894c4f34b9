"""instances.bulkInsert: one operation per instance, and one that waits for all of them.

All share an `operationGroupId`, which gcloud filters by (surface/compute/instances/bulk).
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from tpuctl.emulator.compute.core.collection import Row, check_name
from tpuctl.emulator.compute.core.context import ComputeContext
from tpuctl.emulator.compute.core.errors import bad_field, failed
from tpuctl.emulator.compute.core.messages import as_row
from tpuctl.emulator.compute.core.operation_resource import show
from tpuctl.emulator.compute.instances.instance_templates import find_template, template_name
from tpuctl.emulator.state.merge_patch import merge
from tpuctl.emulator.state.operations import Arguments

_PATTERN = re.compile(r"([^#]*)(#{1,18})([^#]*)")
_FIELD = "resource.{}"


@dataclass(frozen=True)
class Batch:
    """A parsed bulk insertion: instance names and the minimum number that must be created."""

    names: tuple[str, ...]
    min_count: int
    properties: Row


def batch_of(context: ComputeContext, zone: str, request: Any, existing: Iterable[str]) -> Batch:
    """Parse and validate the body; `existing` are the names of the instances of the zone."""
    body = as_row(request.bulk_insert_instance_resource_resource)
    properties = _properties(context, zone, body)
    per_instance = body.get("perInstanceProperties", {})
    pattern = body.get("namePattern", "")
    if bool(per_instance) == bool(pattern):
        reason = "Exactly one of name pattern and per-instance properties must be specified."
        raise bad_field(_FIELD.format("namePattern"), pattern, reason)
    count = int(body.get("count", len(per_instance)))
    if count < 1 or (per_instance and count != len(per_instance)):
        reason = (
            f"The number of names given is {len(per_instance)}." if per_instance else "Too few."
        )
        raise bad_field(_FIELD.format("count"), str(count), reason)
    min_count = int(body.get("minCount", count))
    if not 1 <= min_count <= count:
        reason = "Must be between 1 and the count."
        raise bad_field(_FIELD.format("minCount"), str(min_count), reason)
    names = tuple(sorted(per_instance)) or _numbered_names(pattern, count, existing)
    for name in names:
        check_name(name)
    for disk in properties.get("disks", ()):
        params = disk.get("initializeParams", {})
        if "diskType" in params:  # a name here, a link in an instance (its description)
            params["diskType"] = f"diskTypes/{params['diskType'].rpartition('/')[2]}"
    return Batch(names, min_count, properties)


def _properties(context: ComputeContext, zone: str, body: Row) -> Row:
    """Those of the template, changed by the request's own as by a JSON merge patch."""
    own: Row = body.get("instanceProperties", {})
    if "sourceInstanceTemplate" in body:
        field = _FIELD.format("sourceInstanceTemplate")
        name = template_name(context, zone, body["sourceInstanceTemplate"], field)
        template = find_template(context, name)
        assert template is not None, "its name has just been looked up"
        properties: Row = deepcopy(template["properties"])
        merge(properties, own)
        return properties
    if not own:
        reason = "Instance properties must be specified."
        raise bad_field(_FIELD.format("instanceProperties"), "", reason)
    return own


def _numbered_names(pattern: str, count: int, existing: Iterable[str]) -> tuple[str, ...]:
    """Names after the largest number in use, as the field's description specifies."""
    parts = _PATTERN.fullmatch(pattern)
    if parts is None:
        reason = "Must contain one sequence of up to 18 hash characters."
        raise bad_field(_FIELD.format("namePattern"), pattern, reason)
    before, width, after = parts[1], len(parts[2]), parts[3]
    name_pattern = re.compile(f"{re.escape(before)}([0-9]{{{width}}}){re.escape(after)}")
    numbers = (int(match[1]) for name in existing if (match := name_pattern.fullmatch(name)))
    first = max(numbers, default=0) + 1
    last = first + count - 1
    if len(str(last)) > width:
        reason = f"The number {last} has more digits than the pattern."
        raise bad_field(_FIELD.format("namePattern"), pattern, reason)
    return tuple(f"{before}{number:0{width}}{after}" for number in range(first, last + 1))


class BulkInsertion:
    """The group operation: waits for its members and rolls back if too few succeeded."""

    def __init__(self, instances: Any) -> None:
        self._instances = instances
        self._operations = instances.context.registry.operations
        self._host = instances.context.registry.host

    @staticmethod
    def new_group() -> str:
        return str(secrets.randbelow(9 * 10**18) + 10**18)

    async def wait(self, arguments: Arguments, report: Callable[[str], None]) -> None:
        records = [await self._operations.wait(name, math.inf) for name in arguments["operations"]]
        errors = [record for record in records if record.error is not None]
        if len(records) - len(errors) >= arguments["min_count"]:
            return
        for record in records:
            name = record.arguments["target"]
            row = self._instances.find(name)
            if row is None or row["id"] != record.arguments["target_id"]:
                continue  # already deleted or replaced
            await self._host.discard(name)
            self._instances.remove(name, record.arguments["disks"])
        operation = show(errors[0])
        (first,) = operation["error"]["errors"]
        raise failed(first["code"], first["message"], operation["httpErrorStatusCode"])
