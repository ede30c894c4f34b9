"""Plans: the change to each resource, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from tpuctl.model.events import Outcome


class Action(Enum):
    """A plan's action on a resource."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    NOTHING = "nothing"
    LEAVE = "leave"  # not ours to delete, or kept on request


@dataclass(frozen=True)
class Change:
    """The planned change of a resource; `fields` names what an update changes."""

    address: str
    action: Action
    because: str
    fields: tuple[str, ...] = ()

    @property
    def is_work(self) -> bool:
        return self.action in (Action.CREATE, Action.UPDATE, Action.DELETE)


@dataclass(frozen=True)
class Plan:
    """Changes in an order in which they can be applied one by one."""

    changes: tuple[Change, ...]
    after: dict[str, frozenset[str]] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not any(change.is_work for change in self.changes)

    def __iter__(self) -> Iterator[Change]:
        return iter(self.changes)

    def with_results(self, results: Mapping[str, Result]) -> Plan:
        """What was done: without the changes that turned out not to be needed."""
        return replace(
            self,
            changes=tuple(
                Change(change.address, Action.NOTHING, result.because)
                if change.is_work
                and (result := results.get(change.address)) is not None
                and result.outcome is Outcome.UNCHANGED
                else change
                for change in self
            ),
        )

    def change(self, address: str) -> Change:
        return next(change for change in self.changes if change.address == address)


@dataclass(frozen=True)
class Result:
    """The result of a change."""

    address: str
    outcome: Outcome
    seconds: float = 0.0
    because: str = ""
    error: Exception | None = None
