"""The interface between the emulated APIs and the machines behind them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from tpuctl.catalog import accelerator_type
from tpuctl.local_cloud.machine_error import MachineError

__all__ = [
    "ALLOWED",
    "STARTUP_SCRIPT",
    "ConnectionPolicy",
    "Endpoint",
    "Host",
    "MachineError",
    "MachineSpec",
    "Verdict",
]

STARTUP_SCRIPT = "startup-script"  # a key of metadata


@dataclass(frozen=True)
class Endpoint:
    """A machine's loopback address, and its SSH port (22 where allowed).

    A "node" has the port of TensorFlow's gRPC instead, 8470 unless machines share an address.
    """

    address: str
    ssh_port: int = 22
    serving_port: int = 8470


@dataclass(frozen=True)
class MachineSpec:
    """One machine, with everything that its image, SSH and metadata server need.

    A "worker" belongs to a TPU VM. An "instance" is a Compute Engine VM, such as a controller. A
    "node" is the machine behind a TPU node (API v1): instead of SSH it serves TensorFlow's gRPC on
    port 8470 of its address.
    """

    # The unique key of the methods below: "projects/P/locations/Z/nodes/N/workers/0",
    # "projects/P/zones/Z/instances/I", "projects/P/locations/Z/v1nodes/N/workers/0".
    name: str
    node_id: str
    worker: int
    endpoints: tuple[Endpoint, ...]  # of all workers of the node, in worker order
    project: str
    project_number: int
    zone: str
    accelerator_type: str  # empty for an instance without TPU chips
    runtime_version: str
    service_account: str  # email of the account that the machine acts as
    access_token: str  # that account's bearer token, valid at the local cloud
    metadata: Mapping[str, str] = field(default_factory=dict)  # of the node, with "ssh-keys"
    project_metadata: Mapping[str, str] = field(default_factory=dict)  # visible to instances
    megascale: Mapping[str, str] = field(default_factory=dict)  # in `tpu-env`, with several slices
    kind: Literal["worker", "instance", "node"] = "worker"
    tensorflow: str | None = None  # of the image, if no runtime version determines it
    python: str | None = None  # the same; None if it is unknown
    machine_type: str = ""  # of an instance
    hostname: str = ""  # of an instance, if it is not derived from its name
    members: tuple[str, ...] = ()  # the names of a slice's instances, in worker order
    topology: str = ""  # of the slice, if it is not the accelerator type's usual one
    boot_seconds: float = 0.0  # after `boot`, until logins are possible and scripts start
    scopes: tuple[str, ...] = ("https://www.googleapis.com/auth/cloud-platform",)

    @property
    def endpoint(self) -> Endpoint:
        return self.endpoints[self.worker]

    @property
    def has_chips(self) -> bool:
        """Whether its programs find TPU chips: workers, and instances that are TPUs."""
        return self.kind == "worker" or (self.kind == "instance" and bool(self.accelerator_type))

    @property
    def uses_os_login(self) -> bool:
        """Whether OS Login decides about logins, instead of `ssh-keys`."""
        return (self.attribute("enable-oslogin") or "").lower() == "true"

    @property
    def slice_devices(self) -> int:
        """The TPU devices of the slice, as JAX and TensorFlow count them; 0 without chips."""
        accelerator = accelerator_type(self.accelerator_type) if self.has_chips else None
        return accelerator.devices if accelerator is not None else 0

    @property
    def devices(self) -> int:
        """The devices of this machine."""
        return self.slice_devices // len(self.endpoints)

    def attribute(self, key: str) -> str | None:
        """A metadata value of the machine, or else of its project."""
        return self.metadata.get(key, self.project_metadata.get(key))


@dataclass(frozen=True)
class Verdict:
    """Whether a connection is allowed, and why not, for people."""

    is_allowed: bool
    reason: str = ""

    @classmethod
    def denied(cls, reason: str) -> Verdict:
        return cls(is_allowed=False, reason=reason)


ALLOWED = Verdict(is_allowed=True)


class ConnectionPolicy(Protocol):
    """Decides about TCP connections by the networks' rules. Machines have their full names."""

    def between(self, source: str, target: str, port: int) -> Verdict:
        """A connection of a machine to another one."""
        ...

    def from_outside(self, target: str, port: int) -> Verdict:
        """A connection from this computer to a machine."""
        ...

    def from_relay(self, target: str, port: int) -> Verdict:
        """A connection of Identity-Aware Proxy to a machine."""
        ...

    def to_internet(self, source: str, address: str | None, port: int) -> Verdict:
        """A connection of a machine to a host on the internet; None is an unknown address."""
        ...

    def limits_egress(self, source: str) -> bool:
        """Whether the network of a machine has rules for outgoing connections."""
        ...

    def to_google(self, source: str) -> Verdict:
        """A connection of a machine to one of Google's APIs."""
        ...

    def label(self, machine: str) -> str:
        """The machine's name in messages."""
        ...


class Host(Protocol):
    """Runs machines. Every call is idempotent."""

    # Called with a machine's name at each login with an allowed key: True rejects it. Set by the
    # owner of the host.
    refuses_key: Callable[[str], bool]
    # Called at a login to a machine that uses OS Login, with the user and the public key: whether
    # that user may use sudo, or None, which rejects it.
    os_login: Callable[[MachineSpec, str, str], bool | None]
    # Called when a machine's programs start: how many bytes they may write, None for no limit.
    disk_limit: Callable[[str], int | None]
    # Called when a machine's programs start: how many TPU devices they see at most, 0 for no limit.
    device_limit: Callable[[], int]

    def enforce(self, policy: ConnectionPolicy) -> None:
        """Allow only the connections that the policy allows; without one, all are."""
        ...

    def refresh_firewall(self) -> None:
        """Apply changed rules of the policy."""
        ...

    async def connect_relay(self, name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a machine's SSH as Identity-Aware Proxy, which the policy has allowed."""
        ...

    async def reserve(self, names: Sequence[str]) -> list[Endpoint]:
        """Reserve an address for each machine name; existing reservations are reused."""
        ...

    async def boot(self, spec: MachineSpec, progress: Callable[[str], None]) -> None:
        """Create the image and the machine's folder if missing, and serve SSH and metadata.

        Returns when SSH, or a node's TensorFlow server, accepts connections, or before that if the
        machine has boot seconds. Raises MachineError.
        """
        ...

    def reconfigure(self, spec: MachineSpec) -> None:
        """Apply changed metadata, such as SSH keys, to a running machine."""
        ...

    def set_event(self, name: str, key: str, value: str) -> None:
        """Set an instance value of the metadata server: `preempted`, `maintenance-event`."""
        ...

    async def shut_down(self, name: str) -> None:
        """Stop the machine's processes gracefully, and its listeners; its disk stays."""
        ...

    async def preempt(self, name: str, notice: float) -> None:
        """Set the value `preempted`, and shut the machine down, of which programs learn by SIGTERM.

        They are killed after `notice` seconds, or three if that is longer: at Google it is 30
        (docs.cloud.google.com/compute/docs/instances/preemptible).
        """
        ...

    async def discard(self, name: str) -> None:
        """Kill the machine, and delete its reservation and its disk.

        The disk is moved away immediately; its files are deleted by the time `close` returns.
        """
        ...

    def machines(self) -> list[str]:
        """The names of the running machines, including those whose host has failed."""
        ...

    async def fail_host(self, name: str, *, is_silent: bool) -> None:
        """Simulate the failure of a machine's host, until it is shut down or discarded.

        Connections then hang if `is_silent`, or are refused. MachineError if it is not running.
        """
        ...

    async def limit_disk(self, name: str, free: int | None) -> None:
        """Limit the programs of a running machine to `free` more bytes; None lifts the limit.

        MachineError where that is not possible.
        """
        ...

    def disk_free(self, name: str) -> int | None:
        """How many bytes a machine's programs can still write; None if unlimited."""
        ...

    def guest_attributes(self, name: str) -> Mapping[str, Mapping[str, str]]:
        """By namespace and key; `hostkeys` has `ssh-ed25519` once the machine has booted."""
        ...

    def console(self, name: str) -> bytes:
        """The output of its startup script, of all boots so far."""
        ...

    def count_running(self) -> int: ...

    async def close(self) -> None:
        """Shut down every machine."""
        ...
