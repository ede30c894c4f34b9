"""The view of `status --watch`: a table refreshed in place, or a line per refresh."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.segment import Segment, SegmentLines
from rich.style import Style
from rich.text import Text

from tpuctl.view.progress.base import DUMB_TERMINALS
from tpuctl.view.progress.job_progress import job_sentence, work_facts
from tpuctl.view.stack.cost import on_google
from tpuctl.view.stack.status import charges_table, status_facts, total_costs
from tpuctl.view.terminal.live_region import LiveConsole, LiveRegion
from tpuctl.view.terminal.tables import facts_table

if TYPE_CHECKING:
    from tpuctl.model.status.snapshot import Snapshot

HEADER_LINES = 2  # lines of a table's head
Lines = list[list[Segment]]


class LiveStatus:
    """A context manager that shows snapshots on stdout and leaves the last one there.

    On a terminal, the table is refreshed in place and never exceeds the height; lines that do not
    fit are counted. At the end, all lines are printed.
    """

    def __init__(self, seconds: float, typed: Callable[[str], str], *, is_free: bool) -> None:
        """`typed` returns the command to type for one of the advice."""
        self._seconds = seconds
        self._typed = typed
        self._is_free = is_free
        self._snapshot: Snapshot | None = None
        self._console = LiveConsole(highlight=False, emoji=False)
        self._region: LiveRegion | None = None
        if sys.stdout.isatty() and os.environ.get("TERM", "") not in DUMB_TERMINALS:
            self._region = LiveRegion(self._console, self._draw)

    def __enter__(self) -> LiveStatus:
        if self._region is not None:
            self._region.start(refresh=True)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._region is not None:
            self._region.stop()
            if self._snapshot is not None:
                self._console.print(SegmentLines(self._lines(self._snapshot), new_lines=True))

    def show(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        if self._region is None:
            print(snapshot_line(snapshot, is_free=self._is_free), flush=True)
        else:
            self._region.refresh()

    def _draw(self) -> RenderableType:
        if self._snapshot is None:
            return Text("Loading…", "dim")
        footer = self._rendered(self._footer(self._snapshot))
        lines = self._lines(self._snapshot, self._console.height - 1 - len(footer))
        return SegmentLines([*lines, *footer], new_lines=True)

    def _lines(self, snapshot: Snapshot, most: int = 1_000_000) -> Lines:
        status = snapshot.status
        facts = status_facts(status.stack, status.inventory, status.charges)
        facts += work_facts(snapshot)
        charges = charges_table(status.inventory, status.charges, status.at, is_free=self._is_free)
        advice = [
            Text(f"\n{entry.text}\n    {self._typed(entry.command)}") for entry in snapshot.advice
        ]
        return fit_lines(
            self._rendered(facts_table(facts)),
            self._rendered(charges) if charges is not None else [],
            self._rendered(Group(*advice)),
            most,
        )

    def _footer(self, snapshot: Snapshot) -> Text:
        text = "\n"
        if snapshot.problem is not None:
            text += f"{snapshot.problem.summary}: {snapshot.problem.detail}\n"
            text += "Retrying; the last known state is shown above.\n"
        when = f"{_time(snapshot.at)}, every {self._seconds:g} s; press Ctrl-C to stop."
        return Text.assemble((text, "bold"), (when, "dim"))

    def _rendered(self, renderable: RenderableType) -> Lines:
        options = self._console.options.update(width=max(1, self._console.width - 1))
        return self._console.render_lines(renderable, options, pad=False)


def fit_lines(facts: Lines, table: Lines, advice: Lines, most: int) -> Lines:
    """Facts, a table with two header lines and a total, and advice, in at most `most` lines.

    To fit, first the advice is dropped, then table rows are counted, then facts.
    """
    between: Lines = [[]] if table else []
    everything = [*facts, *between, *table, *advice]
    if len(everything) <= most:
        return everything
    shortest = min(len(table), HEADER_LINES + 2)
    facts = _counted(facts, max(1, most - len(between) - shortest))
    room = most - len(facts) - len(between)
    if len(table) > room and len(table) > HEADER_LINES + 1:
        rows = _counted(table[HEADER_LINES:-1], max(1, room - HEADER_LINES - 1))
        table = [*table[:HEADER_LINES], *rows, table[-1]]
    return [*facts, *between, *table][: max(1, most)]


def _counted(lines: Lines, most: int) -> Lines:
    if len(lines) <= most:
        return lines
    count = Segment(f"… {len(lines) - most + 1} more lines", Style(dim=True))
    return [*lines[: most - 1], [count]]


def snapshot_line(snapshot: Snapshot, *, is_free: bool) -> str:
    """The whole status in one line, for logs and pipes."""
    status = snapshot.status
    if snapshot.problem is not None:
        return f"{_time(snapshot.at)} {snapshot.problem.summary}: {snapshot.problem.detail}"
    parts = [
        f"{item.kind} {item.name} {item.state}"
        for item in status.inventory
        if item.node is not None
    ]
    parts += [
        f"request {item.name} {item.state}" for item in status.inventory if item.kind == "queued"
    ]
    parts += [job_sentence(job, snapshot.at) for job in snapshot.jobs]
    if snapshot.activity is not None:
        parts.append(snapshot.activity.sentence(snapshot.at))
    per_hour, spent = total_costs(status.charges)
    parts.append(on_google(f"{per_hour}/h, {spent} so far", is_free=is_free))
    return f"{_time(snapshot.at)} {'; '.join(parts)}"


def _time(at: datetime) -> str:
    return f"{at.astimezone():%H:%M:%S}"
