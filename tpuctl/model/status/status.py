"""The status of a stack's resources."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from tpuctl.catalog import Api, Capacity


@dataclass(frozen=True)
class NodeStatus:
    """The status of a node."""

    name: str
    id: str  # unique, also among earlier nodes of the same name
    zone: str
    state: str
    health: str
    accelerator_type: str
    runtime: str
    created: datetime | None
    addresses: tuple[str, ...]
    ssh_ports: tuple[int, ...]  # empty for TPU nodes, which have no SSH
    endpoints: tuple[str, ...] = ()  # IP:PORT of a TPU node; empty for TPU VMs
    service_account: str = ""  # a TPU node's service agent; empty for TPU VMs
    inner_addresses: tuple[str, ...] = ()  # reachable in the same network
    instances: tuple[str, ...] = ()  # names of the workers on Compute Engine; empty for the TPU API
    capacity: Capacity | None = None  # None if unknown
    os_login: bool | None = None  # of its machines' metadata; None if the project's decides

    @property
    def api(self) -> Api:
        """Who sells it."""
        return "compute" if self.instances else "tpu"

    def hours(self, now: datetime | None = None) -> float:
        """How long it has existed."""
        return _hours(self.created, now)


@dataclass(frozen=True)
class MachineStatus:
    """The status of a machine without TPU chips: a controller."""

    name: str
    id: str  # unique, also among earlier machines of the same name
    zone: str
    state: str
    machine_type: str
    created: datetime | None
    address: str  # for SSH; empty while it has none
    ssh_port: int = 22
    inner_address: str = ""  # reachable in the same network
    os_login: bool | None = None  # as of a node

    def hours(self, now: datetime | None = None) -> float:
        """How long it has existed."""
        return _hours(self.created, now)


@dataclass(frozen=True)
class Holding:
    """The size of a bucket's contents."""

    bytes: int
    objects: int
    is_whole: bool = True  # False: there are more that were not counted
    cached_bytes: int = 0  # of them, environments and compiled programs


@dataclass(frozen=True)
class Remaining:
    """A line of the final report of `down`."""

    address: str
    state: str  # "deleted", "kept" or "remains"
    reason: str
    is_billable: bool
    holding: Holding | None = None  # of the stack's bucket, if it still exists
    per_month: float | None = None  # monthly cost in US dollars


def _hours(created: datetime | None, now: datetime | None) -> float:
    if created is None:
        return 0.0
    return max(0.0, ((now or datetime.now(UTC)) - created).total_seconds() / 3600)


@dataclass(frozen=True)
class Down:
    """The result of `down`."""

    remaining: tuple[Remaining, ...]

    @property
    def leaks(self) -> tuple[Remaining, ...]:
        """What still costs money and was not kept on request."""
        return tuple(
            item for item in self.remaining if item.state == "remains" and item.is_billable
        )

    @property
    def retained(self) -> tuple[Remaining, ...]:
        """What costs money and was kept on request."""
        return tuple(item for item in self.remaining if item.state == "kept" and item.is_billable)
