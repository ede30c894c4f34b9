"""A loopback address and ports for each machine, persisted across restarts.

Linux serves all of 127.0.0.0/8, so each machine gets its own address there. On other systems all
share 127.0.0.1 and differ by port.
"""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import Literal

from tpuctl.emulator.machines.interface import Endpoint, MachineError

SHARED = "127.0.0.1"
SERVING_PORT = 8470  # of TensorFlow on TPU nodes
HIGH_PORTS = range(20000, 32000)  # below the ephemeral ports


@dataclass(frozen=True)
class Reservation:
    """The address and ports of one machine."""

    address: str
    ssh_port: int
    metadata_port: int
    serving_port: int = SERVING_PORT

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.address, self.ssh_port, self.serving_port)


def can_listen(address: str, port: int) -> bool:
    """Whether this user can listen there now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            probe.listen(1)
        except OSError:
            return False
    return True


class Addresses:
    """The reservations of one local cloud, stored in a file."""

    def __init__(self, file: Path, *, ssh: Literal["auto", "high"] = "auto") -> None:
        self._file = file
        self._ssh = ssh
        self._random = random.Random()
        self._network: str | None = None  # "127.X.Y"; None: all machines share one address
        self._reserved: dict[str, Reservation] = {}
        if file.exists():
            saved = json.loads(file.read_text("utf-8"))
            self._network = saved["network"]
            self._reserved = {
                name: Reservation(**reservation) for name, reservation in saved["machines"].items()
            }
        else:
            self._network = self._choose_network()

    def reserve(self, names: Sequence[str]) -> list[Reservation]:
        """A reservation for each name, in order; existing ones are reused."""
        for name in names:
            if name not in self._reserved:
                self._reserved[name] = self._choose(serves="/v1nodes/" in name)
        self._save()
        return [self._reserved[name] for name in names]

    def find(self, name: str) -> Reservation:
        return self._reserved[name]

    def names(self) -> list[str]:
        return list(self._reserved)

    def name_at(self, address: str) -> str | None:
        """The machine with this address of its own."""
        if address == SHARED:
            return None
        for name, reservation in self._reserved.items():
            if reservation.address == address:
                return name
        return None

    @property
    def network(self) -> IPv4Network | None:
        """A range with all addresses and `relay`, of no others; None if they share one."""
        if self._network is None:
            return None
        return IPv4Network(f"{self._network}.0/16", strict=False)

    @property
    def relay(self) -> str | None:
        """An address in the network that no machine gets."""
        return None if self._network is None else f"{self._network}.255"

    def release(self, name: str) -> None:
        if self._reserved.pop(name, None) is not None:
            self._save()

    def _choose_network(self) -> str | None:
        for _ in range(20):
            network = f"127.{self._random.randint(16, 250)}.{self._random.randint(1, 250)}"
            if can_listen(f"{network}.1", 0):
                return network
        return None

    def _choose(self, *, serves: bool) -> Reservation:
        address = self._free_address()
        used_ports = {
            port
            for other in self._reserved.values()
            if other.address == address
            for port in (other.ssh_port, other.metadata_port, other.serving_port)
        }
        own_address = self._network is not None
        ssh_port = self._port(
            address, 22 if own_address and self._ssh == "auto" else None, used_ports
        )
        used_ports.add(ssh_port)
        metadata_port = self._port(address, 80 if own_address else None, used_ports)
        if not serves:
            return Reservation(address, ssh_port, metadata_port)
        used_ports.add(metadata_port)
        serving_port = self._port(address, SERVING_PORT if own_address else None, used_ports)
        return Reservation(address, ssh_port, metadata_port, serving_port)

    def _free_address(self) -> str:
        if self._network is None:
            return SHARED
        used_addresses = {other.address for other in self._reserved.values()}
        first, second, third = (int(part) for part in self._network.split("."))
        for index in range(254 * 64):
            carried, last = divmod(index, 254)
            address = f"{first}.{second}.{(third + carried) % 256}.{last + 1}"
            if address not in used_addresses:
                return address
        raise MachineError("No loopback address is left for another machine.")

    def _port(self, address: str, preferred: int | None, used_ports: Collection[int]) -> int:
        if preferred is not None and can_listen(address, preferred):
            return preferred
        for port in self._random.sample(HIGH_PORTS, min(200, len(HIGH_PORTS))):
            if port not in used_ports and can_listen(address, port):
                return port
        raise MachineError(f"No free port on {address}.")

    def _save(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        machines = {name: asdict(reservation) for name, reservation in self._reserved.items()}
        text = json.dumps({"network": self._network, "machines": machines}, indent=1)
        fresh = self._file.with_suffix(".new")
        fresh.write_text(text, "utf-8")
        fresh.replace(self._file)
