"""The interface of APIs whose resources have machines, for the core and other APIs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tpuctl.emulator.faults.weather import Occupant
from tpuctl.emulator.state.firewall_rules import Identity


@dataclass(frozen=True)
class NetworkInterface:
    """A machine's place in the networks. Networks and subnetworks have full names."""

    machine: str
    address: str  # on loopback
    network: str
    subnetwork: str = ""
    range: str | None = None  # instead of the subnetwork's
    identity: Identity = field(default_factory=Identity)
    has_external_address: bool = False
    is_managed: bool = False  # in a network of Google's, which is peered with `network`


class MachineService:
    """An emulated API whose resources have machines. Names are full resource names."""

    async def resume(self) -> None:
        """Boot the machines that were running when the previous server process ended."""
        raise NotImplementedError

    async def preempt(self, name: str) -> None:
        """Preempt a resource after a short notice, as Google does with spot capacity."""
        raise NotImplementedError

    async def maintain(self, name: str) -> None:
        """Put a resource through a maintenance event."""
        raise NotImplementedError

    def occupants(self) -> Iterable[Occupant]:
        """What takes room in zones: all that runs, or is being created."""
        raise NotImplementedError

    def users_of_network(self, network: str) -> Sequence[str]:
        """The resources on a network."""
        raise NotImplementedError

    def users_of_disks(self, project: str) -> Mapping[str, Sequence[str]]:
        """The resources of a project that use each disk, by disk name."""
        return {}

    def reconfigure_all(self, project: str) -> None:
        """Apply changed project metadata to the project's machines."""

    def tunnel_target(self, project: str, zone: str, host: str) -> str | None:
        """The full name of the running machine with that name in `projects/P`, if any."""
        return None

    def interface(self, machine: str) -> NetworkInterface | None:
        """The network interface of a machine; None if it is not one of this API's."""
        raise NotImplementedError
