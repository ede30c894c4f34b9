"""What exists of a stack, as values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

__all__ = ["NodeStatus", "Remaining"]


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
    ssh_ports: tuple[int, ...]

    def hours(self, now: datetime | None = None) -> float:
        """How long it has existed."""
        if self.created is None:
            return 0.0
        return max(0.0, ((now or datetime.now(UTC)) - self.created).total_seconds() / 3600)


@dataclass(frozen=True)
class Remaining:
    """One line of the proof that `down` ends with."""

    address: str
    state: str  # "gone", "kept" or "remains"
    why: str
    is_billable: bool
