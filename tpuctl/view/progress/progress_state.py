"""Progress as rows (planned, running, ended), built from events."""

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
from tpuctl.model.status.inventory import GROUPS
from tpuctl.view.progress.base import outcome_word, progress_word
from tpuctl.view.progress.transfer import Rate

UNCHANGED_ACTIONS = ("nothing", "leave")  # actions that change nothing
MAX_UNCHANGED = 3  # lines for what does not change; more are folded into one
# The group of steps without a resource, by address prefix.
STEP_GROUPS = {"cloud": "TPU", "image": "TPU", "gs:": "bucket", "ssh": "machines", "job": "run"}
GROUP_ORDER = (*GROUPS, "machines", "run")


class RowState(Enum):
    """The state of a row."""

    PLANNED = "planned"
    RUNNING = "running"
    DONE = "done"
    UNCHANGED = "unchanged"
    FAILED = "failed"
    SKIPPED = "skipped"
    INTERRUPTED = "interrupted"


@dataclass
class Row:
    """One resource or step."""

    address: str
    action: str = ""
    state: RowState = RowState.PLANNED
    depends_on: tuple[str, ...] = ()
    text: str = ""  # its progress, or how it ended
    fraction: float | None = None
    transferred: tuple[int, int] | None = None  # bytes done, and total
    rate: Rate = field(default_factory=Rate)
    started: float = 0.0
    seconds: float = 0.0  # duration, once it has ended

    @property
    def group(self) -> str:
        return group_of(self.address)

    @property
    def name(self) -> str:
        """The displayed name: phases of a run without their prefix."""
        return self.address.removeprefix("job/")

    @property
    def has_ended(self) -> bool:
        return self.state not in (RowState.PLANNED, RowState.RUNNING)


def group_of(address: str) -> str:
    """The group of an address; kinds without a group form their own."""
    from tpuctl.resources.composition import BY_NAME

    kind = address.partition("/")[0]
    return BY_NAME[kind].group if kind in BY_NAME else STEP_GROUPS.get(kind, kind)


class ProgressState:
    """The current rows, ordered by group."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self.started = now()
        self._rows: dict[str, Row] = {}

    def __bool__(self) -> bool:
        return bool(self._rows)

    def on(self, event: Event) -> None:
        match event:
            case Planned(steps):
                for step in steps:
                    row = self._rows.setdefault(step.address, Row(step.address))
                    row.action, row.depends_on, row.text = (
                        step.action,
                        step.depends_on,
                        step.because,
                    )
                    row.state = (
                        RowState.UNCHANGED if step.action in UNCHANGED_ACTIONS else RowState.PLANNED
                    )
            case StepStarted(address, action, because):
                old = self._rows.get(address, Row(address))
                row = Row(address, action, RowState.RUNNING, old.depends_on, started=self.now())
                if row.group == "run":  # of a resource, it says why and not what is done
                    row.text = because
                    self._insert_unplanned(row)
                self._rows[address] = row
            case StepProgress(address, text, fraction):
                row = self._rows.setdefault(address, Row(address, started=self.now()))
                row.state, row.text, row.fraction = RowState.RUNNING, text, fraction
                row.transferred = None
                if event.done is not None and event.total is not None:
                    row.transferred = event.done, event.total
                    row.rate.feed(self.now(), event.done)
            case StepFinished(address, Outcome.UNCHANGED, _, _) if address not in self._rows:
                pass  # unplanned and unchanged: not shown
            case StepFinished(address, outcome, seconds, because):
                row = self._rows.setdefault(address, Row(address))
                row.state, row.seconds = RowState(outcome.value), seconds
                row.text = because
                if outcome not in (Outcome.UNCHANGED, Outcome.SKIPPED):
                    word = outcome_word(event, row.action)
                    is_phase = row.group == "run" and because
                    shows_why = outcome is Outcome.DONE and because
                    row.text = because if is_phase else f"{word}: {because}" if shows_why else word

    def _insert_unplanned(self, row: Row) -> None:
        """Insert a new row before the planned ones of its group: phases begin in their order."""
        later = {
            address: other
            for address, other in self._rows.items()
            if other.group == row.group and other.state is RowState.PLANNED
        }
        if row.address not in self._rows:
            for address in later:
                del self._rows[address]
            self._rows |= {row.address: row, **later}

    @property
    def rows(self) -> list[Row]:
        order = [*GROUP_ORDER, *dict.fromkeys(row.group for row in self._rows.values())]
        return sorted(self._rows.values(), key=lambda row: order.index(row.group))

    @property
    def is_under_way(self) -> bool:
        return any(row.state is RowState.RUNNING for row in self._rows.values())

    def has(self, address: str) -> bool:
        return address in self._rows

    @property
    def is_over(self) -> bool:
        """Whether no row is running or planned."""
        return all(row.has_ended for row in self._rows.values())

    @property
    def has_failed(self) -> bool:
        """Whether a row failed and none is running."""
        failed = any(row.state is RowState.FAILED for row in self._rows.values())
        return failed and not self.is_under_way

    def starts_over(self, event: Planned) -> bool:
        """Whether a plan contains rows that have ended: a new operation starts."""
        return any(
            (row := self._rows.get(step.address)) is not None
            and row.has_ended
            and row.state is not RowState.UNCHANGED
            for step in event.steps
        )

    def remove_ended(self) -> list[Row]:
        """Remove and return the rows that have ended."""
        rows = [row for row in self.rows if row.has_ended]
        for row in rows:
            del self._rows[row.address]
        return rows

    def drop(self, address: str) -> None:
        """Remove a row."""
        self._rows.pop(address, None)

    def clear(self) -> None:
        """Remove all rows."""
        self._rows.clear()

    def seconds(self, row: Row) -> float | None:
        """Its duration; None before it started, or if it did nothing."""
        if row.state is RowState.RUNNING:
            return self.now() - row.started
        return row.seconds if row.state in (RowState.DONE, RowState.FAILED) else None

    def description(self, row: Row) -> str:
        """The description of a row, without transferred bytes."""
        match row.state:
            case RowState.PLANNED:
                return self._waiting_text(row)
            case RowState.RUNNING:
                text = row.text or progress_word(row.action)
                return text if row.fraction is None else f"{text} {row.fraction:.0%}"
            case RowState.SKIPPED:
                return f"skipped: {row.text} failed"
            case _:
                return row.text

    def _waiting_text(self, row: Row) -> str:
        waiting = list(self._unfinished(row))
        if not waiting:
            return f"to {row.action}" if row.action else "planned"
        running = [address for address in waiting if self._rows[address].state is RowState.RUNNING]
        first = (running or waiting)[0]
        more = f" and {len(waiting) - 1} more" if len(waiting) > 1 else ""
        return f"waits for {self._rows[first].name}{more}"

    def _unfinished(self, row: Row) -> Iterator[str]:
        for address in row.depends_on:
            before = self._rows.get(address)
            if before is not None and not before.has_ended:
                yield address
