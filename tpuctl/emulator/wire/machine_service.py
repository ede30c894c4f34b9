"""What an API answers about its resources that have machines: to the core, and to other APIs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["MachineService", "TunnelTarget"]


@dataclass(frozen=True)
class TunnelTarget:
    """A running machine as a network's firewall and its host know it."""

    machine: str
    network: str
    tags: frozenset[str]


class MachineService:
    """One emulated API whose resources have machines; names of those are full ones."""

    async def resume(self) -> None:
        """Boot, in a new process, the machines of what ran when the last one ended."""
        raise NotImplementedError

    async def preempt(self, name: str) -> None:
        """Take a resource's machines away, as Google does with spot ones, after a short notice."""
        raise NotImplementedError

    async def maintain(self, name: str) -> None:
        """Put a resource through a maintenance event."""
        raise NotImplementedError

    def users_of_network(self, network: str) -> Sequence[str]:
        """The resources on a network."""
        raise NotImplementedError

    def users_of_disks(self, project: str) -> Mapping[str, Sequence[str]]:
        """The resources of a project that have each disk attached, by the name of the disk."""
        return {}

    def reconfigure_all(self, project: str) -> None:
        """Tell the machines of a project that its metadata has changed."""

    def tunnel_target(self, project: str, zone: str, host: str) -> TunnelTarget | None:
        """The running machine of that name in `projects/P`; None for none."""
        return None
