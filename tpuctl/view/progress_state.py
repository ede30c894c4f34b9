"""What is being done, as rows: planned, under way, ended. Listens to events, shows nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from tpuctl.model.events import (
    Event,
    Outcome,
    Planned,
    StepFinished,
    StepProgress,
    StepStarted,
)
from tpuctl.model.inventory import GROUPS
from tpuctl.view.base import doing, ended
from tpuctl.view.rate import Rate

__all__ = ["STAYS", "Row", "Standing", "Story", "group_of"]

STAYS = ("nothing", "leave")  # actions of things that are left as they are
# What steps are about that make no resource, by the beginning of their address.
OF_STEPS = {"cloud": "TPU", "image": "TPU", "gs:": "bucket", "ssh": "machines", "job": "run"}
ORDER = (*GROUPS, "machines", "run")


class Standing(Enum):
    """Where a row stands."""

    PLANNED = "planned"
    RUNNING = "running"
    DONE = "done"
    UNCHANGED = "unchanged"
    FAILED = "failed"
    SKIPPED = "skipped"
    INTERRUPTED = "interrupted"


@dataclass
class Row:
    """One thing that is worked on."""

    address: str
    action: str = ""
    standing: Standing = Standing.PLANNED
    after: tuple[str, ...] = ()
    text: str = ""  # what it waits for, or how it ended
    fraction: float | None = None
    moved: tuple[int, int] | None = None  # bytes done, and in all
    rate: Rate = field(default_factory=Rate)
    began: float = 0.0
    seconds: float = 0.0  # that it took, once it has ended

    @property
    def group(self) -> str:
        return group_of(self.address)

    @property
    def name(self) -> str:
        """As it is shown in its group: phases of a run by their own name."""
        return self.address.removeprefix("job/")

    @property
    def has_ended(self) -> bool:
        return self.standing not in (Standing.PLANNED, Standing.RUNNING)


def group_of(address: str) -> str:
    """What the thing is about: kinds that belong to no group are one of their own."""
    from tpuctl.resources.composition import BY_NAME

    kind = address.partition("/")[0]
    return BY_NAME[kind].group if kind in BY_NAME else OF_STEPS.get(kind, kind)


class Story:
    """The rows of what is being done now, in the order of their groups."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self.began = now()
        self._rows: dict[str, Row] = {}

    def __bool__(self) -> bool:
        return bool(self._rows)

    def on(self, event: Event) -> None:
        match event:
            case Planned(steps):
                for one in steps:
                    row = self._rows.setdefault(one.address, Row(one.address))
                    row.action, row.after, row.text = one.action, one.depends_on, one.because
                    row.standing = Standing.UNCHANGED if one.action in STAYS else Standing.PLANNED
            case StepStarted(address, action, _):
                old = self._rows.get(address, Row(address))
                self._rows[address] = Row(
                    address, action, Standing.RUNNING, old.after, began=self.now()
                )
            case StepProgress(address, text, fraction):
                row = self._rows.setdefault(address, Row(address, began=self.now()))
                row.standing, row.text, row.fraction = Standing.RUNNING, text, fraction
                row.moved = None
                if event.done is not None and event.total is not None:
                    row.moved = event.done, event.total
                    row.rate.feed(self.now(), event.done)
            case StepFinished(address, Outcome.UNCHANGED, _, _) if address not in self._rows:
                pass  # it stood there from the beginning
            case StepFinished(address, outcome, seconds, because):
                row = self._rows.setdefault(address, Row(address))
                row.standing, row.seconds = Standing(outcome.value), seconds
                row.text = because
                if outcome not in (Outcome.UNCHANGED, Outcome.SKIPPED):
                    word = ended(event, row.action)
                    is_phase = row.group == "run" and because
                    shows_why = outcome is Outcome.DONE and because
                    row.text = because if is_phase else f"{word}: {because}" if shows_why else word

    @property
    def rows(self) -> list[Row]:
        order = [*ORDER, *dict.fromkeys(row.group for row in self._rows.values())]
        return sorted(self._rows.values(), key=lambda row: order.index(row.group))

    @property
    def is_under_way(self) -> bool:
        return any(row.standing is Standing.RUNNING for row in self._rows.values())

    def has(self, address: str) -> bool:
        return address in self._rows

    @property
    def is_over(self) -> bool:
        """Whether nothing is under way or to come."""
        return all(row.has_ended for row in self._rows.values())

    @property
    def has_failed(self) -> bool:
        """Whether something failed and nothing else is under way."""
        failed = any(row.standing is Standing.FAILED for row in self._rows.values())
        return failed and not self.is_under_way

    def begins_anew(self, event: Planned) -> bool:
        """Whether a plan is about things that have ended in this story: it is another one."""
        return any(
            (row := self._rows.get(one.address)) is not None
            and row.has_ended
            and row.standing is not Standing.UNCHANGED
            for one in event.steps
        )

    def end(self) -> list[Row]:
        """The rows that have ended, which are taken out: what is to come stays."""
        told = [row for row in self.rows if row.has_ended]
        for row in told:
            del self._rows[row.address]
        return told

    def drop(self, address: str) -> None:
        """Without a row, whether it has ended or not."""
        self._rows.pop(address, None)

    def forget(self) -> None:
        """Nothing is being done any more."""
        self._rows.clear()

    def seconds(self, row: Row) -> float | None:
        """How long it has taken; None for what has not begun or took no time."""
        if row.standing is Standing.RUNNING:
            return self.now() - row.began
        return row.seconds if row.standing in (Standing.DONE, Standing.FAILED) else None

    def words(self, row: Row) -> str:
        """What is said of a row, without its bytes."""
        match row.standing:
            case Standing.PLANNED:
                return self._waits_for(row)
            case Standing.RUNNING:
                shown = row.text or doing(row.action)
                return shown if row.fraction is None else f"{shown} {row.fraction:.0%}"
            case Standing.SKIPPED:
                return f"skipped: {row.text} failed"
            case _:
                return row.text

    def _waits_for(self, row: Row) -> str:
        waiting = list(self._unfinished(row))
        if not waiting:
            return f"to {row.action}" if row.action else "to come"
        running = [one for one in waiting if self._rows[one].standing is Standing.RUNNING]
        first = (running or waiting)[0]
        more = f" and {len(waiting) - 1} more" if len(waiting) > 1 else ""
        return f"waits for {self._rows[first].name}{more}"

    def _unfinished(self, row: Row) -> Iterator[str]:
        for address in row.after:
            before = self._rows.get(address)
            if before is not None and not before.has_ended:
                yield address
