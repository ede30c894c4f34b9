"""The shared state of all emulated APIs: store, operations, pace, machines, projects, faults."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from tpuctl.emulator.faults.fault import Faults
from tpuctl.emulator.faults.traffic import Caller, Traffic
from tpuctl.emulator.faults.weather import Occupant, Weather
from tpuctl.emulator.iam.authority import Authority
from tpuctl.emulator.iam.crypto_keys import CryptoKeys
from tpuctl.emulator.iam.guard import Guard
from tpuctl.emulator.iam.tokens import AccessTokens
from tpuctl.emulator.machines.interface import Host
from tpuctl.emulator.state.operations import Effect, Operations
from tpuctl.emulator.state.projects import Directory
from tpuctl.emulator.state.settings import Settings
from tpuctl.emulator.state.store import Store
from tpuctl.emulator.wire.google_api import GoogleApi
from tpuctl.emulator.wire.machine_service import MachineService
from tpuctl.local_cloud.pace import Pace

__all__ = ["Caller", "Registry", "Service"]


class Service:
    """An emulated API, or a version of one."""

    effects: Mapping[str, Effect] = {}  # of its operations, by name, as "tpu.nodes.create"

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def handler(self, service: str) -> Any:
        """The object whose methods answer this gRPC service; None for a service without gRPC."""
        return self


@dataclass
class Registry:
    """One local cloud, as seen by its services."""

    home: Path
    store: Store
    pace: Pace
    access: AccessTokens
    host: Host
    apis: Sequence[GoogleApi]
    operations: Operations = field(init=False)
    projects: Directory = field(init=False)
    settings: Settings = field(init=False)
    authority: Authority = field(init=False)
    keys: CryptoKeys = field(init=False)
    faults: Faults = field(init=False)
    traffic: Traffic = field(init=False)
    weather: Weather = field(init=False)
    guard: Guard = field(init=False)
    _services: Mapping[str, str] = field(init=False)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set, init=False)
    _loaded: dict[str, Service] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._services = {key: place for api in self.apis for key, place in api.services.items()}
        self.projects = Directory(self.store)
        self.settings = Settings(self.store)
        agents = {api.access.host: api.access.agents for api in self.apis}
        self.faults = Faults(self.store)
        self.authority = Authority(self.store, self.settings, self.projects, agents, self.faults)
        self.keys = CryptoKeys(self.store, self.projects, self.authority.allows)
        self.projects.on_first_enabled = self.authority.grant_service_agents
        self.traffic = Traffic(self.faults, self._project_number, self._describe)
        self.weather = Weather(
            self.faults,
            self._occupants,
            lambda name: self.machine_service(name).preempt(name),
            self.in_background,
        )
        accesses = [api.access for api in self.apis]
        self.guard = Guard(
            *(self.store, self.projects, self.authority.allows, self.authority.is_unrestricted),
            *(self.traffic.caller, accesses),
        )
        self.operations = Operations(self.store, self._find_effect, self.traffic.shape_operation)

    def service(self, key: str) -> Service:
        """The service with that key, created lazily: Google's libraries load slowly."""
        service = self._loaded.get(key)
        if service is None:
            module, _, name = self._services[key].partition(":")
            service = getattr(importlib.import_module(module), name)(self)
            self._loaded[key] = service
        return service

    def machine_service(self, name: str) -> MachineService:
        """The service of a resource with machines; LookupError if it is not found."""
        for kind, key in self._with_machines():
            if self.store.get(kind, name) is not None:
                return cast(MachineService, self.service(key))
        raise LookupError(name)

    def names_with_machines(self) -> list[str]:
        """The full names of all resources that have machines."""
        return [name for kind, _ in self._with_machines() for name, _ in self.store.items(kind)]

    def _with_machines(self) -> Iterator[tuple[str, str]]:
        for api in self.apis:
            yield from api.with_machines.items()

    def machine_services(self) -> Iterator[MachineService]:
        """The services that have resources with machines."""
        keys = [key for kind, key in self._with_machines() if self.store.count(kind)]
        for key in dict.fromkeys(keys):
            yield cast(MachineService, self.service(key))

    def _occupants(self) -> Iterator[Occupant]:
        for service in self.machine_services():
            yield from service.occupants()

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a background task; it is canceled when the cloud closes."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Stop operations and background tasks. Pending operations stay in the store."""
        await self.operations.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _project_number(self, project: str) -> int | None:
        record = self.projects.find(project)
        return int(record["number"]) if record else None

    def _describe(self, method: str) -> Mapping[str, str]:
        """A method's values for error messages of faults."""
        api = self.guard.api_of(method)
        service = api.host if api is not None else "unknown"
        if not method.startswith("storage."):
            return {"service": service}
        permission = self.guard.permissions.storage_permission(method)
        return {"service": service, "permission": permission}

    def _find_effect(self, name: str) -> Effect:
        return self.service(name.partition(".")[0]).effects[name]
