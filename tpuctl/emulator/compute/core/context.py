"""What all Compute Engine collections share: the local cloud, rows, and operations."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from typing import Any

from tpuctl.emulator.compute.core.messages import message_of
from tpuctl.emulator.compute.core.operation_resource import show
from tpuctl.emulator.state.locations import check_region, check_zone
from tpuctl.emulator.state.operations import Arguments
from tpuctl.emulator.wire.registry import Caller, Registry

# Kinds in the store that several collections read.
ADDRESSES = "compute.addresses"
DISKS = "compute.disks"
FIREWALLS = "compute.firewalls"
GLOBAL_ADDRESSES = "compute.globalAddresses"
IMAGES = "compute.images"
INSTANCES = "compute.instances"
INSTANCE_GROUP_MANAGERS = "compute.instanceGroupManagers"
INSTANCE_TEMPLATES = "compute.instanceTemplates"
NETWORKS = "compute.networks"
REGION_INSTANCE_TEMPLATES = "compute.regionInstanceTemplates"
RESIZE_REQUESTS = "compute.instanceGroupManagerResizeRequests"
RESOURCE_POLICIES = "compute.resourcePolicies"
ROUTES = "compute.routes"
SNAPSHOTS = "compute.snapshots"
STORAGE_POOLS = "compute.storagePools"

Row = dict[str, Any]
Items = list[tuple[str, Row]]


def new_id() -> str:
    """gcloud stores host keys by ID: it must be unique across local clouds."""
    return str(10**18 + secrets.randbelow(8 * 10**18))


class ComputeContext:
    """Passed to every collection; collections know each other only where passed explicitly."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.store = registry.store

    # Rows of any collection, by kind in the store: "compute.disks".

    def find(self, kind: str, name: str) -> Row | None:
        return self.store.get_json(kind, name)

    def names(self, kind: str, prefix: str) -> Sequence[str]:
        """Full names, sorted."""
        return [name for name, _ in self.store.items(kind, prefix)]

    def items(self, kind: str, prefix: str) -> Items:
        """Full names and rows, sorted by name."""
        return [(name, json.loads(body)) for name, body in self.store.items(kind, prefix)]

    def project(self, name: str) -> str:
        """The ID of a project given by ID or number."""
        return str(self.registry.projects.require(name, "compute.googleapis.com")["id"])

    def scope(self, request: Any, kind: str) -> str:
        """The full name of a request's scope: `projects/P/global`, `projects/P/zones/Z`."""
        project = self.project(request.project)
        if kind == "zones":
            return f"projects/{project}/zones/{check_zone(request.zone)}"
        if kind == "regions":
            return f"projects/{project}/regions/{check_region(request.region)}"
        return f"projects/{project}/global"

    # Operations.

    def operation_of_request(self, target: str, request_id: str) -> Any | None:
        """The operation that a request with this ID began earlier, as a message."""
        if not request_id:
            return None
        operation_name = self.registry.store.get(
            "compute.request", f"{target.split('/')[1]}/{request_id}"
        )
        if operation_name is None:
            return None
        return message_of("Operation", show(self.registry.operations.get(operation_name.decode())))

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
        """Begin an operation in its target's scope: zone, region, or global.

        A repeated request ID returns the existing operation.
        """
        existing = self.operation_of_request(target, request_id)
        if existing is not None:
            return existing
        store = self.registry.store
        scope = _scope_of(target)
        microseconds = time.time_ns() // 1000
        suffix = f"{microseconds:x}-{secrets.token_hex(4)}-{secrets.token_hex(4)}"
        name = f"{scope}/operations/operation-{microseconds // 1000}-{suffix}"
        with store.transaction():
            if request_id:
                project = target.split("/")[1]
                store.put("compute.request", f"{project}/{request_id}", name.encode())
            record = self.registry.operations.begin(
                scope,
                effect,
                {
                    **arguments,
                    "target": target,
                    "verb": verb,
                    "id": new_id(),
                    "user": caller.email,
                },
                self.registry.pace.seconds(step),
                name=name,
            )
        return message_of("Operation", show(record))


def _scope_of(target: str) -> str:
    parts = target.split("/")
    if len(parts) > 3 and parts[2] in ("zones", "regions"):
        return "/".join(parts[:4])
    return f"projects/{parts[1]}/global"
