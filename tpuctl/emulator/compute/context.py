"""What all collections of Compute Engine work with: the local cloud, rows, and operations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from tpuctl.emulator.compute.messages import message_of
from tpuctl.emulator.compute.operation_resource import show
from tpuctl.emulator.state.operations import Arguments
from tpuctl.emulator.wire.registry import Caller, World

__all__ = [
    "ADDRESSES",
    "DISKS",
    "FIREWALLS",
    "GLOBAL_ADDRESSES",
    "INSTANCES",
    "NETWORKS",
    "ComputeContext",
    "Items",
    "Row",
]

# Kinds of the store that more than one collection reads.
ADDRESSES = "compute.addresses"
DISKS = "compute.disks"
FIREWALLS = "compute.firewalls"
GLOBAL_ADDRESSES = "compute.globalAddresses"
INSTANCES = "compute.instances"
NETWORKS = "compute.networks"

Row = dict[str, Any]
Items = list[tuple[str, Row]]


class ComputeContext:
    """Handed to every collection, which knows no other one unless that is handed to it too."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.store = world.store

    # Rows of any collection, by the kind of the store: "compute.disks".

    def find(self, kind: str, name: str) -> Row | None:
        return self.store.get_json(kind, name)

    def names(self, kind: str, prefix: str) -> Sequence[str]:
        """Full names, in order."""
        return [name for name, _ in self.store.items(kind, prefix)]

    def items(self, kind: str, prefix: str) -> Items:
        """Full names and rows, in order of name."""
        return [(name, json.loads(body)) for name, body in self.store.items(kind, prefix)]

    def project(self, name: str) -> str:
        """The id of a project, given by id or number."""
        return str(self.world.projects.require(name, "compute.googleapis.com")["id"])

    # Operations.

    def begun_before(self, target: str, request_id: str) -> Any | None:
        """The operation that a request of this id began earlier, as a message."""
        if not request_id:
            return None
        known = self.world.store.get("compute.request", f"{target.split('/')[1]}/{request_id}")
        if known is None:
            return None
        return message_of("Operation", show(self.world.operations.get(known.decode())))

    def begin(
        self,
        effect: str,
        verb: str,
        target: str,
        step: str,
        caller: Caller,
        arguments: Arguments,
        request_id: str = "",
    ) -> Any:
        """Start an operation where its target is: in a zone, a region, or globally.

        A request id seen before gives the operation of then.
        """
        again = self.begun_before(target, request_id)
        if again is not None:
            return again
        store = self.world.store
        scope = _scope_of(target)
        number = store.next("compute-id", 10**18)
        stamp = int(datetime.now(UTC).timestamp() * 1000)
        name = f"{scope}/operations/operation-{stamp}-{number:x}"
        with store.transaction():
            if request_id:
                project = target.split("/")[1]
                store.put("compute.request", f"{project}/{request_id}", name.encode())
            record = self.world.operations.begin(
                scope,
                effect,
                {
                    **arguments,
                    "target": target,
                    "verb": verb,
                    "id": str(number),
                    "user": caller.email,
                },
                self.world.pace.seconds(step),
                name=name,
            )
        return message_of("Operation", show(record))


def _scope_of(target: str) -> str:
    parts = target.split("/")
    if len(parts) > 3 and parts[2] in ("zones", "regions"):
        return "/".join(parts[:4])
    return f"projects/{parts[1]}/global"
