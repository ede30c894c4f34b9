"""Plans as values: what would be done to which thing, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from tpuctl.model.events import Outcome

__all__ = ["Action", "Change", "Plan", "Result"]


class Action(Enum):
    """What a plan does to one resource."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    NOTHING = "nothing"
    LEAVE = "leave"  # it is not ours to delete, or was asked to stay


@dataclass(frozen=True)
class Change:
    """One resource's part of a plan; `fields` names what an update changes."""

    address: str
    action: Action
    because: str
    fields: tuple[str, ...] = ()

    @property
    def is_work(self) -> bool:
        return self.action in (Action.CREATE, Action.UPDATE, Action.DELETE)


@dataclass(frozen=True)
class Plan:
    """Changes in the order in which they could be done one by one."""

    changes: tuple[Change, ...]
    after: dict[str, frozenset[str]] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not any(change.is_work for change in self.changes)

    def __iter__(self) -> Iterator[Change]:
        return iter(self.changes)

    def change(self, address: str) -> Change:
        return next(change for change in self.changes if change.address == address)


@dataclass(frozen=True)
class Result:
    """How one resource's change ended."""

    address: str
    outcome: Outcome
    seconds: float = 0.0
    because: str = ""
    error: Exception | None = None
