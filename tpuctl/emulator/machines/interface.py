"""What the emulated APIs ask of the machines behind them: the seam between the two."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

__all__ = ["Endpoint", "Host", "MachineError", "MachineSpec"]


class MachineError(Exception):
    """A machine could not be made or started; the text is fit to be shown to the user."""


@dataclass(frozen=True)
class Endpoint:
    """Where a machine listens: a loopback address, and SSH's port (22 where allowed).

    Of a "node": the port of TensorFlow's gRPC, 8470 wherever the address is its own.
    """

    address: str
    ssh_port: int = 22
    serving_port: int = 8470


@dataclass(frozen=True)
class MachineSpec:
    """One machine, with all that its image, SSH and metadata server need to know.

    A "worker" is one of a TPU VM. An "instance" is a Compute Engine VM, such as a controller. A
    "node" is the machine behind a TPU node (API v1): nobody logs in there, it serves TensorFlow's
    gRPC on port 8470 of its address instead of SSH.
    """

    # Unique, the key of everything below: "projects/P/locations/Z/nodes/N/workers/0",
    # "projects/P/zones/Z/instances/I", "projects/P/locations/Z/v1nodes/N/workers/0".
    name: str
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
    project_metadata: Mapping[str, str] = field(default_factory=dict)  # what an instance sees too
    kind: Literal["worker", "instance", "node"] = "worker"
    tensorflow: str | None = None  # of the image, where no runtime version tells
    machine_type: str = ""  # of an instance
    scopes: tuple[str, ...] = ("https://www.googleapis.com/auth/cloud-platform",)

    @property
    def endpoint(self) -> Endpoint:
        return self.endpoints[self.worker]

    def attribute(self, key: str) -> str | None:
        """A value of its metadata: its own, else its project's."""
        return self.metadata.get(key, self.project_metadata.get(key))


class Host(Protocol):
    """Runs machines. Every call is safe to repeat."""

    # Asked by a machine, with its name, at each login with a key that may come in: True keeps it
    # out. Set by whoever opened the host.
    refuses_key: Callable[[str], bool]
    # Asked when a machine's programs begin to run: how many bytes they may write, None for any.
    disk_limit: Callable[[str], int | None]

    async def reserve(self, names: Sequence[str]) -> list[Endpoint]:
        """Choose an address for each machine name; the same answer for a name reserved before."""
        ...

    async def boot(self, spec: MachineSpec, progress: Callable[[str], None]) -> None:
        """Make the image and the machine's folder if need be, and serve SSH and metadata.

        Returns when SSH, or a node's TensorFlow server, accepts connections. Raises MachineError.
        """
        ...

    def reconfigure(self, spec: MachineSpec) -> None:
        """Take over changed metadata (keys among it) on a running machine."""
        ...

    def set_event(self, name: str, key: str, value: str) -> None:
        """Change an instance value of the metadata server: `preempted`, `maintenance-event`."""
        ...

    async def shut_down(self, name: str) -> None:
        """End the machine's processes, asked to first, and its listeners; its disk stays."""
        ...

    async def discard(self, name: str) -> None:
        """End it without asking its programs, and delete its reservation and its disk.

        The disk is out of the way at once; its files are gone when `close` returns.
        """
        ...

    def machines(self) -> list[str]:
        """The names of the machines that run, those included whose host has failed."""
        ...

    async def fail_host(self, name: str, *, is_silent: bool) -> None:
        """Have a machine gone without a word, until it is shut or discarded.

        Who is or gets connected hears nothing then, or is refused. MachineError if it cannot.
        """
        ...

    async def limit_disk(self, name: str, free: int | None) -> None:
        """Let the programs of a machine that runs write so many bytes more, None for any number.

        MachineError where that is not possible.
        """
        ...

    def disk_free(self, name: str) -> int | None:
        """How many bytes a machine's programs can still write; None where nothing limits them."""
        ...

    def guest_attributes(self, name: str) -> Mapping[str, Mapping[str, str]]:
        """By namespace and key; `hostkeys` has `ssh-ed25519` once the machine has booted."""
        ...

    def console(self, name: str) -> bytes:
        """What its startup script has said, at all its boots so far."""
        ...

    def count_running(self) -> int: ...

    async def close(self) -> None:
        """Shut every machine."""
        ...
