"""Compute Engine v1, as far as a TPU stack needs it: its service object and its operations."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from tpuctl.emulator.operations import Arguments, Effect
from tpuctl.emulator.services.compute_addresses import Addresses, GlobalAddresses
from tpuctl.emulator.services.compute_disks import Disks, DiskTypes
from tpuctl.emulator.services.compute_images import ImageFamilyViews, Images
from tpuctl.emulator.services.compute_instances import Instances
from tpuctl.emulator.services.compute_machine_types import MachineTypes
from tpuctl.emulator.services.compute_network import Firewalls, Networks
from tpuctl.emulator.services.compute_operations import (
    GlobalOperations,
    RegionOperations,
    ZoneOperations,
    show,
)
from tpuctl.emulator.services.compute_project import Projects
from tpuctl.emulator.services.compute_quota import Quota, Regions, Zones
from tpuctl.emulator.services.compute_snapshots import Snapshots
from tpuctl.emulator.services.compute_subnetworks import Routes, Subnetworks
from tpuctl.emulator.services.compute_wire import message_of
from tpuctl.emulator.world import Caller, World
from tpuctl.google_imports import compute_types

__all__ = ["ComputeService"]


class ComputeService:
    """Its collections answer requests; here is what they share: operations and their effects."""

    def __init__(self, world: World) -> None:
        compute_types()  # makes the package cheap to import
        self.world = world
        self.networks, self.firewalls = Networks(self), Firewalls(self)
        self.subnetworks = Subnetworks(self)
        self.addresses, self.global_addresses = Addresses(self), GlobalAddresses(self)
        self.projects = Projects(self)
        self.images, self.quota = Images(self), Quota(self)
        self.disks, self.instances = Disks(self), Instances(self)
        self.snapshots = Snapshots(self)
        changing: Mapping[str, Any] = {
            "Networks": self.networks,
            "Firewalls": self.firewalls,
            "Subnetworks": self.subnetworks,
            "Addresses": self.addresses,
            "GlobalAddresses": self.global_addresses,
            "Projects": self.projects,
            "Disks": self.disks,
            "Snapshots": self.snapshots,
            "Instances": self.instances,
        }
        self._handlers: Mapping[str, Any] = {
            **changing,
            "Routes": Routes(self),
            "Images": self.images,
            "ImageFamilyViews": ImageFamilyViews(self.images),
            "MachineTypes": MachineTypes(self),
            "DiskTypes": DiskTypes(self),
            "Zones": Zones(self),
            "Regions": Regions(self),
            "GlobalOperations": GlobalOperations(self),
            "ZoneOperations": ZoneOperations(self),
            "RegionOperations": RegionOperations(self),
        }
        self.effects: Mapping[str, Effect] = {
            name: effect for one in changing.values() for name, effect in one.effects.items()
        }

    def handler(self, service: str) -> Any:
        return self._handlers.get(service.rpartition(".")[2])

    @property
    def collections(self) -> list[str]:
        """The names of those that are imitated."""
        return list(self._handlers)

    async def resume(self) -> None:
        """Boot the machines of every instance that ran when the last process ended."""
        await self.instances.resume()

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
