"""What every emulated API is handed: the store, operations, paces, machines, callers, projects."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

from tpuctl.emulator.faults.fault import Faults
from tpuctl.emulator.faults.traffic import Caller, Traffic
from tpuctl.emulator.iam.authority import Authority
from tpuctl.emulator.iam.guard import Guard
from tpuctl.emulator.iam.method_permissions import storage_permission
from tpuctl.emulator.iam.tokens import Access
from tpuctl.emulator.machines.interface import Host
from tpuctl.emulator.state.operations import Effect, Operations
from tpuctl.emulator.state.pace import Pace
from tpuctl.emulator.state.projects import Directory
from tpuctl.emulator.state.settings import Settings
from tpuctl.emulator.state.store import Store
from tpuctl.emulator.wire.machine_service import MachineService

__all__ = ["SERVICES", "Caller", "Service", "World"]

# Where each service lives; imported when first called, for Google's libraries are slow to load.
SERVICES: Mapping[str, str] = {
    "tpu": "tpuctl.emulator.tpu.v2:TpuService",
    "projects": "tpuctl.emulator.resource_manager.projects:ProjectsService",
    "resources_v1": "tpuctl.emulator.resource_manager.v1:ResourcesV1Service",
    "services": "tpuctl.emulator.service_usage.services:ServicesService",
    "identity": "tpuctl.emulator.iam.admin.service:IdentityService",
    "compute": "tpuctl.emulator.compute.service:ComputeService",
    "operations": "tpuctl.emulator.wire.operations_service:OperationsService",
    "org_policies": "tpuctl.emulator.org_policy.service:OrgPolicyService",
    "tpu_v1": "tpuctl.emulator.tpu.v1:TpuV1Service",
    "tpu_alpha": "tpuctl.emulator.tpu.v2alpha1:TpuAlphaService",
    "billing": "tpuctl.emulator.billing.accounts:BillingService",
    "containers": "tpuctl.emulator.resource_manager.folders:ContainersService",
    "price_list": "tpuctl.emulator.billing.catalog:PriceListService",
    "quota": "tpuctl.emulator.service_usage.quota:QuotaService",
    "secrets": "tpuctl.emulator.secret_manager.service:SecretsService",
}

# What stands in the store and has machines, by kind, and its service.
WITH_MACHINES: Mapping[str, str] = {
    "tpu.node": "tpu",
    "tpu.v1.node": "tpu_v1",
    "compute.instances": "compute",
}


class Service(Protocol):
    """One emulated API."""

    effects: Mapping[str, Effect]  # by name, as "tpu.nodes.create"

    def handler(self, service: str) -> Any:
        """The object whose methods answer this gRPC service."""
        ...


@dataclass
class World:
    """One local cloud, as its services see it."""

    home: Path
    store: Store
    pace: Pace
    access: Access
    host: Host
    operations: Operations = field(init=False)
    projects: Directory = field(init=False)
    settings: Settings = field(init=False)
    authority: Authority = field(init=False)
    faults: Faults = field(init=False)
    traffic: Traffic = field(init=False)
    guard: Guard = field(init=False)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set, init=False)
    _loaded: dict[str, Service] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.projects = Directory(self.store)
        self.settings = Settings(self.store)
        self.authority = Authority(self.store, self.settings, self.projects)
        self.projects.first_enabled = self.authority.greet
        self.faults = Faults(self.store)
        self.traffic = Traffic(self.faults, self._number_of, storage_permission)
        self.guard = Guard(self.store, self.projects, self.authority, self.traffic)
        self.operations = Operations(self.store, self._find_effect, self.traffic.shape_operation)

    def service(self, key: str) -> Service:
        """The service of that key, made when first asked for."""
        found = self._loaded.get(key)
        if found is None:
            module, _, name = SERVICES[key].partition(":")
            found = getattr(importlib.import_module(module), name)(self)
            self._loaded[key] = found
        return found

    def machine_service(self, name: str) -> MachineService:
        """The service of a resource with machines; LookupError where there is none of that name."""
        for kind, key in WITH_MACHINES.items():
            if self.store.get(kind, name) is not None:
                return cast(MachineService, self.service(key))
        raise LookupError(name)

    def names_with_machines(self) -> list[str]:
        """The full names of all resources that have machines."""
        return [name for kind in WITH_MACHINES for name, _ in self.store.items(kind)]

    def machine_services(self) -> Iterator[MachineService]:
        """Those of which there is any resource with machines."""
        for kind, key in WITH_MACHINES.items():
            if self.store.count(kind):
                yield cast(MachineService, self.service(key))

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that nobody waits for; it is cancelled when the cloud closes."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Stop operations and background work. What is pending stays in the store."""
        await self.operations.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _number_of(self, project: str) -> int | None:
        found = self.projects.find(project)
        return int(found["number"]) if found else None

    def _find_effect(self, name: str) -> Effect:
        return self.service(name.partition(".")[0]).effects[name]
