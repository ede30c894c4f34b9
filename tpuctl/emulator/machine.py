"""What the emulated APIs ask of the machines behind them: the seam between the two."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["Endpoint", "Host", "MachineError", "MachineSpec"]


class MachineError(Exception):
    """A machine could not be made or started; the text is fit to be shown to the user."""


@dataclass(frozen=True)
class Endpoint:
    """Where a machine's SSH server listens: a loopback address and a port (22 where allowed)."""

    address: str
    ssh_port: int = 22


@dataclass(frozen=True)
class MachineSpec:
    """One worker of a node, with all that its image, SSH and metadata server need to know."""

    name: str  # "projects/P/locations/Z/nodes/N/workers/0": unique, the key of everything below
    node_id: str
    worker: int
    endpoints: tuple[Endpoint, ...]  # of all workers of the node, in worker order
    project: str
    project_number: int
    zone: str
    accelerator_type: str
    runtime_version: str
    service_account: str  # e-mail of the account that the machine acts as
    access_token: str  # that account's bearer token, valid at the local cloud
    metadata: Mapping[str, str] = field(default_factory=dict)  # the node's own, "ssh-keys" too

    @property
    def endpoint(self) -> Endpoint:
        return self.endpoints[self.worker]


class Host(Protocol):
    """Runs machines. Every call is safe to repeat."""

    async def reserve(self, names: Sequence[str]) -> list[Endpoint]:
        """Choose an address for each machine name; the same answer for a name reserved before."""
        ...

    async def boot(self, spec: MachineSpec, progress: Callable[[str], None]) -> None:
        """Make the image and the machine's folder if need be, and serve SSH and metadata.

        Returns when SSH accepts connections. Raises MachineError.
        """
        ...

    def reconfigure(self, spec: MachineSpec) -> None:
        """Take over changed metadata (keys among it) on a running machine."""
        ...

    def set_event(self, name: str, key: str, value: str) -> None:
        """Change an instance value of the metadata server: `preempted`, `maintenance-event`."""
        ...

    async def shut(self, name: str) -> None:
        """End the machine's processes, asked to first, and its listeners; its disk stays."""
        ...

    async def discard(self, name: str) -> None:
        """End it without asking its programs, and delete its reservation and its disk.

        The disk is out of the way at once; its files are gone when `close` returns.
        """
        ...

    def guest_attributes(self, name: str) -> Mapping[str, Mapping[str, str]]:
        """By namespace and key; `hostkeys` has `ssh-ed25519` once the machine has booted."""
        ...

    def count_running(self) -> int: ...

    async def close(self) -> None:
        """Shut every machine."""
        ...
