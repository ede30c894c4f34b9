"""Compute Engine v1, as far as TPU stacks need it: the service object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tpuctl.emulator.compute.core.context import ComputeContext
from tpuctl.emulator.compute.core.operations import Operations
from tpuctl.emulator.compute.disks.disk_types import DiskTypes
from tpuctl.emulator.compute.disks.disks import Disks, RegionDisks
from tpuctl.emulator.compute.disks.images import ImageFamilyViews, Images
from tpuctl.emulator.compute.disks.snapshots import Snapshots
from tpuctl.emulator.compute.disks.storage_pools import StoragePools
from tpuctl.emulator.compute.groups.instance_group_managers import InstanceGroupManagers
from tpuctl.emulator.compute.groups.instance_groups import Autoscalers, InstanceGroups
from tpuctl.emulator.compute.groups.resize_requests import ResizeRequests
from tpuctl.emulator.compute.groups.resource_policies import ResourcePolicies
from tpuctl.emulator.compute.instances.capacity import Capacity
from tpuctl.emulator.compute.instances.instance_templates import (
    InstanceTemplates,
    RegionInstanceTemplates,
)
from tpuctl.emulator.compute.instances.instances import Instances
from tpuctl.emulator.compute.instances.project import Projects
from tpuctl.emulator.compute.networks.addresses import Addresses, GlobalAddresses
from tpuctl.emulator.compute.networks.networks import Firewalls, Networks
from tpuctl.emulator.compute.networks.routers import Routers
from tpuctl.emulator.compute.networks.routes import Routes
from tpuctl.emulator.compute.networks.subnetworks import Subnetworks
from tpuctl.emulator.compute.offerings.accelerator_types import AcceleratorTypes
from tpuctl.emulator.compute.offerings.machine_type_collection import MachineTypes
from tpuctl.emulator.compute.offerings.quota import Quota, Regions, Zones
from tpuctl.emulator.compute.offerings.reservations import FutureReservations, Reservations
from tpuctl.emulator.faults.weather import Occupant
from tpuctl.emulator.state.operations import Effect
from tpuctl.emulator.wire.machine_service import MachineService, NetworkInterface
from tpuctl.emulator.wire.registry import Registry, Service
from tpuctl.google_imports import compute_types


class ComputeService(Service, MachineService):
    """Collections handle the requests; this class connects them and collects their effects."""

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry)
        compute_types()  # the light import of the package
        self.context = context = ComputeContext(registry)
        self.subnetworks = Subnetworks(context)
        self.firewalls = Firewalls(context)
        self.networks = Networks(context, self.subnetworks, self.firewalls)
        self.global_addresses = GlobalAddresses(context, self.subnetworks)
        self.addresses = Addresses(context, self.subnetworks, self.global_addresses)
        self.quota = Quota(context, self.subnetworks)
        self.projects = Projects(context, self.quota.project_metrics)
        self.images = Images(context)
        self.snapshots = Snapshots(context)
        self.disks = Disks(context, self.snapshots, self.quota.disk_refusal)
        self.reservations = Reservations(context)
        self.future_reservations = FutureReservations(context, self.reservations)
        capacity = Capacity(context, self.quota)
        self.instances = Instances(context, self.disks, self.subnetworks, self.projects, capacity)
        self.group_managers = InstanceGroupManagers(context, self.instances)
        collections: Mapping[str, Any] = {
            "Networks": self.networks,
            "Firewalls": self.firewalls,
            "Subnetworks": self.subnetworks,
            "Addresses": self.addresses,
            "GlobalAddresses": self.global_addresses,
            "Projects": self.projects,
            "Disks": self.disks,
            "Snapshots": self.snapshots,
            "Images": self.images,
            "Instances": self.instances,
            "Reservations": self.reservations,
            "FutureReservations": self.future_reservations,
            "InstanceGroupManagers": self.group_managers,
            "InstanceGroupManagerResizeRequests": ResizeRequests(context, self.group_managers),
            "InstanceTemplates": InstanceTemplates(context),
            "RegionInstanceTemplates": RegionInstanceTemplates(context),
            "ResourcePolicies": ResourcePolicies(context),
            "Routers": Routers(context, self.subnetworks),
            "Routes": Routes(context, self.subnetworks),
            "StoragePools": StoragePools(context),
        }
        self.handlers: Mapping[str, Any] = {
            **collections,
            "Autoscalers": Autoscalers(context),
            "InstanceGroups": InstanceGroups(context, self.instances),
            "RegionDisks": RegionDisks(context, self.snapshots, self.quota.disk_refusal),
            "ImageFamilyViews": ImageFamilyViews(self.images),
            "AcceleratorTypes": AcceleratorTypes(context),
            "MachineTypes": MachineTypes(context),
            "DiskTypes": DiskTypes(context),
            "Zones": Zones(context),
            "Regions": Regions(context, self.quota),
            "GlobalOperations": Operations(context, "global"),
            "ZoneOperations": Operations(context, "zones"),
            "RegionOperations": Operations(context, "regions"),
        }
        self.effects: Mapping[str, Effect] = {
            name: effect
            for collection in collections.values()
            for name, effect in collection.effects.items()
        }

    def handler(self, service: str) -> Any:
        return self.handlers.get(service.rpartition(".")[2])

    async def resume(self) -> None:
        await self.instances.resume()
        self.group_managers.resume()

    async def preempt(self, name: str) -> None:
        """Preempt an instance, or all of a group's; of a slice, all are preempted together."""
        for member in self.group_managers.preempted_with(name):
            self.instances.preempt(member, self._registry.pace.seconds("tpu.preempt"))

    async def maintain(self, name: str) -> None:
        await self.instances.maintain(name)

    def occupants(self) -> Iterator[Occupant]:
        return self.instances.occupants()

    def users_of_network(self, network: str) -> Sequence[str]:
        return self.instances.users_of_network(network)

    def users_of_disks(self, project: str) -> Mapping[str, Sequence[str]]:
        return self.instances.users_of_disks(project)

    def reconfigure_all(self, project: str) -> None:
        self.instances.reconfigure_all(project)

    def tunnel_target(self, project: str, zone: str, host: str) -> str | None:
        return self.instances.tunnel_target(f"{project}/zones/{zone}/instances/{host}")

    def interface(self, machine: str) -> NetworkInterface | None:
        return self.instances.interface(machine)
