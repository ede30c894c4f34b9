"""A host with stub machines: the APIs can be tested without SSH or images."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tpuctl.emulator.machines.interface import ConnectionPolicy, Endpoint, MachineError, MachineSpec


class NullHost:
    """Records its calls. `broken` makes boots fail; `gate` blocks boots and discards while cleared;
    `called` lists calls that have begun, `events` the events sent to machines."""

    def __init__(self, home: Path, api_address: tuple[str, int]) -> None:
        self.api_address = api_address
        self.specs: dict[str, MachineSpec] = {}
        self.running: set[str] = set()
        self.discarded: list[str] = []
        self.called: list[str] = []
        self.events: list[tuple[str, str, str]] = []  # machine, key, value
        self.reserved: dict[str, Endpoint] = {}
        self.lost: dict[str, bool] = {}  # by machine, whether it is silent
        self.limits: dict[str, int | None] = {}  # of disks
        self.broken = ""
        self.ssh_port = 22
        self.gate = asyncio.Event()
        self.gate.set()
        self.is_closed = False
        self.policy: ConnectionPolicy | None = None
        self.refreshed = 0

    async def start(self) -> None:
        return None

    def enforce(self, policy: ConnectionPolicy) -> None:
        self.policy = policy

    def refresh_firewall(self) -> None:
        self.refreshed += 1

    async def connect_relay(self, name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        endpoint = self.reserved[name]
        return await asyncio.open_connection(endpoint.address, endpoint.ssh_port)

    async def reserve(self, names: Sequence[str]) -> list[Endpoint]:
        for name in names:
            if name not in self.reserved:
                number = len(self.reserved) + 1
                self.reserved[name] = Endpoint(f"127.0.9.{number}", self.ssh_port)
        return [self.reserved[name] for name in names]

    async def boot(self, spec: MachineSpec, progress: Callable[[str], None]) -> None:
        progress(f"booting {spec.name}")
        self.called.append("boot")
        await self.gate.wait()
        if self.broken:
            raise MachineError(self.broken)
        self.specs[spec.name] = spec
        self.running.add(spec.name)

    def reconfigure(self, spec: MachineSpec) -> None:
        self.specs[spec.name] = spec

    def set_event(self, name: str, key: str, value: str) -> None:
        self.events.append((name, key, value))

    async def preempt(self, name: str, notice: float) -> None:
        self.set_event(name, "preempted", "TRUE")
        await self.gate.wait()
        self.running.discard(name)

    async def shut_down(self, name: str) -> None:
        self.running.discard(name)

    async def discard(self, name: str) -> None:
        self.called.append("discard")
        await self.gate.wait()
        self.running.discard(name)
        self.reserved.pop(name, None)
        self.discarded.append(name)

    def machines(self) -> list[str]:
        return sorted(self.running)

    async def fail_host(self, name: str, *, is_silent: bool) -> None:
        self.lost[name] = is_silent

    async def limit_disk(self, name: str, free: int | None) -> None:
        self.limits[name] = free

    def disk_free(self, name: str) -> int | None:
        return self.limits.get(name)

    def guest_attributes(self, name: str) -> Mapping[str, Mapping[str, str]]:
        attributes = {"hostkeys": {"ssh-ed25519": f"KEY-OF-{name[-1]}"}}
        place, _, worker = name.partition("/workers/")
        if worker:
            attributes["tpu"] = {"hostname": f"t1v-n-{place.rpartition('/')[2]}-w-{worker}"}
        return attributes

    def console(self, name: str) -> bytes:
        return f"{name} says 1\n".encode()

    def count_running(self) -> int:
        return len(self.running)

    async def close(self) -> None:
        self.running.clear()
        self.is_closed = True
