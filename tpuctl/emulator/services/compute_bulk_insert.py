"""Many instances by one call: an operation for each, and one that ends when they have.

All share an `operationGroupId`, by which gcloud lists them (surface/compute/instances/bulk).
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tpuctl.emulator.operations import Arguments, Effect
from tpuctl.emulator.services.compute_collection import Row, name_must_fit
from tpuctl.emulator.services.compute_errors import bad_field, failed
from tpuctl.emulator.services.compute_operations import show
from tpuctl.emulator.services.compute_wire import as_row
from tpuctl.emulator.status import invalid

__all__ = ["Batch", "BulkInsertion", "batch_of"]

_PATTERN = re.compile(r"([^#]*)(#{1,18})([^#]*)")
_FIELD = "resource.{}"


@dataclass(frozen=True)
class Batch:
    """What a bulk insertion asks for: names within the zone, and how many of them must come."""

    names: tuple[str, ...]
    least: int
    properties: Row


def batch_of(request: Any, existing: Iterable[str]) -> Batch:
    """Read and check the body; `existing` are the names of the zone's instances."""
    asked = as_row(request.bulk_insert_instance_resource_resource)
    if "sourceInstanceTemplate" in asked:
        raise invalid("Templates and machine images are not imitated.", reason="invalid")
    if "instanceProperties" not in asked:
        why = "Instance properties must be specified."
        raise bad_field(_FIELD.format("instanceProperties"), "", why)
    per_instance = asked.get("perInstanceProperties", {})
    pattern = asked.get("namePattern", "")
    if bool(per_instance) == bool(pattern):
        why = "Exactly one of name pattern and per-instance properties must be specified."
        raise bad_field(_FIELD.format("namePattern"), pattern, why)
    count = int(asked.get("count", len(per_instance)))
    if count < 1 or (per_instance and count != len(per_instance)):
        why = f"The number of names given is {len(per_instance)}." if per_instance else "Too few."
        raise bad_field(_FIELD.format("count"), str(count), why)
    least = int(asked.get("minCount", count))
    if not 1 <= least <= count:
        why = "Must be between 1 and the count."
        raise bad_field(_FIELD.format("minCount"), str(least), why)
    names = tuple(sorted(per_instance)) or _numbered(pattern, count, existing)
    for name in names:
        name_must_fit(name)
    return Batch(names, least, asked["instanceProperties"])


def _numbered(pattern: str, count: int, existing: Iterable[str]) -> tuple[str, ...]:
    """Names after the largest number that is taken, as the field's description has it."""
    found = _PATTERN.fullmatch(pattern)
    if found is None:
        why = "Must contain one sequence of up to 18 hash characters."
        raise bad_field(_FIELD.format("namePattern"), pattern, why)
    before, width, after = found[1], len(found[2]), found[3]
    taken = re.compile(f"{re.escape(before)}([0-9]{{{width}}}){re.escape(after)}")
    numbers = (int(match[1]) for name in existing if (match := taken.fullmatch(name)))
    first = max(numbers, default=0) + 1
    last = first + count - 1
    if len(str(last)) > width:
        why = f"The number {last} has more digits than the pattern."
        raise bad_field(_FIELD.format("namePattern"), pattern, why)
    return tuple(f"{before}{number:0{width}}{after}" for number in range(first, last + 1))


class BulkInsertion:
    """The operation over the others: it waits for them, and undoes what came when too few did."""

    def __init__(self, instances: Any) -> None:
        self._instances = instances
        self._operations = instances.service.world.operations
        self.effect = Effect(lambda arguments: None, self._wait)

    @staticmethod
    def new_group() -> str:
        return str(secrets.randbelow(9 * 10**18) + 10**18)

    async def _wait(self, arguments: Arguments, tell: Callable[[str], None]) -> None:
        ended = [await self._operations.wait(name, math.inf) for name in arguments["members"]]
        errors = [record for record in ended if record.error is not None]
        if len(ended) - len(errors) >= arguments["least"]:
            return
        for record in ended:
            name = record.arguments["target"]
            row = self._instances.find(name)
            if row is None or row["id"] != record.arguments["target_id"]:
                continue  # it is gone, or was replaced since then
            await self._instances.discard_machine(name)
            self._instances.remove(name, record.arguments["disks"])
        shown = show(errors[0])
        (first,) = shown["error"]["errors"]
        raise failed(first["code"], first["message"], shown["httpErrorStatusCode"])
