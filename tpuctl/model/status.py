"""What exists of a stack, as values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

__all__ = ["Down", "Holding", "MachineStatus", "NodeStatus", "Remaining"]


@dataclass(frozen=True)
class NodeStatus:
    """What is known of a node of the stack."""

    name: str
    id: str  # differs from that of any other node, earlier ones of the same name too
    zone: str
    state: str
    health: str
    accelerator_type: str
    runtime: str
    created: datetime | None
    addresses: tuple[str, ...]
    ssh_ports: tuple[int, ...]  # none of a TPU node: nobody logs in there
    endpoints: tuple[str, ...] = ()  # IP:PORT where a TPU node serves; none of a TPU VM
    service_account: str = ""  # as which a TPU node reads and writes gs://; not told of a TPU VM
    inner_addresses: tuple[str, ...] = ()  # for who is in the same network

    def hours(self, now: datetime | None = None) -> float:
        """How long it has existed."""
        return _hours(self.created, now)


@dataclass(frozen=True)
class MachineStatus:
    """What is known of a machine that carries no chips: a stack's controller."""

    name: str
    id: str  # differs from that of any other machine, earlier ones of the same name too
    zone: str
    state: str
    machine_type: str
    created: datetime | None
    address: str  # the one that SSH is to use; empty while it has none
    ssh_port: int = 22
    inner_address: str = ""  # for who is in the same network

    def hours(self, now: datetime | None = None) -> float:
        """How long it has existed."""
        return _hours(self.created, now)


@dataclass(frozen=True)
class Holding:
    """How much a bucket holds."""

    bytes: int
    objects: int
    is_whole: bool = True  # False: there are more, which were not looked at


@dataclass(frozen=True)
class Remaining:
    """One line of the proof that `down` ends with."""

    address: str
    state: str  # "deleted", "kept" or "remains"
    why: str
    is_billable: bool
    holding: Holding | None = None  # of a bucket of the stack that is still there
    per_month: float | None = None  # what that costs a month, in US dollars


def _hours(created: datetime | None, now: datetime | None) -> float:
    if created is None:
        return 0.0
    return max(0.0, ((now or datetime.now(UTC)) - created).total_seconds() / 3600)


@dataclass(frozen=True)
class Down:
    """What `down` did: the proof that it ends with."""

    remaining: tuple[Remaining, ...]

    @property
    def leaks(self) -> tuple[Remaining, ...]:
        """What still costs money and was not asked to stay."""
        return tuple(
            item for item in self.remaining if item.state == "remains" and item.is_billable
        )

    @property
    def retained(self) -> tuple[Remaining, ...]:
        """What costs money and was asked to stay."""
        return tuple(item for item in self.remaining if item.state == "kept" and item.is_billable)
