"""Render progress rows as a tree that fits the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from tpuctl.units import clock_time
from tpuctl.view.progress.progress_state import MAX_UNCHANGED, ProgressState, Row, RowState
from tpuctl.view.progress.transfer import transfer_words
from tpuctl.view.terminal.text_wrapping import plain

MIN_GROUP_WIDTH = 60  # columns below which group names and bars are omitted
MIN_TIME_WIDTH = 30  # columns below which times are omitted
MAX_WIDTH = 110  # wider lines are hard to read
BAR = 12
MAX_ROWS = 40  # ended rows that are printed individually
MIN_SUMMARY_ROWS = 6  # without a summary
MIN_FOLDED = 3  # rows that are not folded
ENDED = (RowState.DONE, RowState.SKIPPED)
FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
# Readable on dark and light backgrounds; the marks carry the same meaning.
STYLES = {
    RowState.PLANNED: "dim",
    RowState.RUNNING: "bold",
    RowState.DONE: "green",
    RowState.UNCHANGED: "dim",
    RowState.FAILED: "bold red",
    RowState.SKIPPED: "dim",
    RowState.INTERRUPTED: "magenta",
}
MARKS = dict(zip(STYLES, "○⠿✓·✗-!", strict=True))
ASCII_MARKS = str.maketrans("○⠿✓·✗┬├└─…" + FRAMES, "o>+.x-||-~" + r"|/-\|/-\|/")
WORDS = {
    RowState.PLANNED: "planned",
    RowState.RUNNING: "in progress",
    RowState.DONE: "done",
    RowState.UNCHANGED: "unchanged",
    RowState.SKIPPED: "skipped",
}


@dataclass(frozen=True)
class _Line:
    """One line of the tree: a row, or a count of folded rows with what is known of them."""

    group: str
    state: RowState
    row: Row | None = None
    count: str = ""
    text: str = ""


class ProgressTree:
    """Renders progress."""

    def __init__(self, state: ProgressState) -> None:
        self._state = state

    def live(self, width: int, height: int) -> RenderableType:
        """The current state in fewer lines than `height`, with a summary if there is room."""
        rows = self._state.rows
        room = max(1, height - 1)
        has_summary = len(rows) > MIN_SUMMARY_ROWS and room > MIN_FOLDED
        table = self._table(_fit(self._state, rows, room - has_summary), width)
        return Group(table, self._summary(rows, width - 1)) if has_summary else table

    def ended(self, rows: Sequence[Row], width: int) -> Table:
        """Ended rows, for permanent output."""
        return self._table(_fold(rows, ENDED if len(rows) > MAX_ROWS else ENDED[1:]), width)

    def _table(self, lines: Sequence[_Line], width: int) -> Table:
        is_wide, has_times = width >= MIN_GROUP_WIDTH, width >= MIN_TIME_WIDTH
        table = Table.grid(
            Column(no_wrap=True),
            Column(no_wrap=True, ratio=1),
            *[Column(no_wrap=True, style="dim", justify="right")][:has_times],
            padding=(0, 1),
        )
        table.width = min(width - 1, MAX_WIDTH)
        group_width = max((len(line.group) for line in lines), default=0)
        for number, line in enumerate(lines):
            style = STYLES[line.state]
            head = Text()
            if is_wide:
                is_first = number == 0 or lines[number - 1].group != line.group
                is_last = number == len(lines) - 1 or lines[number + 1].group != line.group
                branch = ("─" if is_last else "┬") if is_first else "└" if is_last else "├"
                head.append(f"{line.group if is_first else '':<{group_width}} ", "bold")
                head.append(f"{branch} ", "dim")
            head.append(f"{self._mark(line.state)} ", style)
            name = _name(line, max(16, table.width * 3 // 8))
            head.append(f"{name} ", "dim" if style == "dim" else "")
            time = (Text(self._time(line.row)),)[:has_times]
            table.add_row(head, self._body(line, has_bar=is_wide), *time)
        return table

    def _mark(self, state: RowState) -> str:
        if state is RowState.RUNNING:
            return FRAMES[int(self._state.now() * 4) % len(FRAMES)]
        return MARKS[state]

    def _body(self, line: _Line, *, has_bar: bool) -> RenderableType:
        """What is known of a row: its transfer or its description."""
        if line.row is None:
            text = line.text
        elif _is_transfer(line.row):
            return _transfer(line.row, has_bar=has_bar)
        else:
            text = self._state.description(line.row)
        # Only text of problems is colored: green is hard to read on white.
        style = STYLES[line.state]
        return Text(_flat(text), "" if style in ("bold", "green") else style)

    def _time(self, row: Row | None) -> str:
        """A row's duration; transfers show the time that is left instead."""
        seconds = None if row is None or _is_transfer(row) else self._state.seconds(row)
        return "" if seconds is None else clock_time(seconds)

    def _summary(self, rows: Sequence[Row], width: int) -> Text:
        counts = Counter(row.state for row in rows)
        all_work = len(rows) - counts[RowState.UNCHANGED]
        ended = all_work - counts[RowState.PLANNED] - counts[RowState.RUNNING]
        words = [f"{ended} of {all_work} done", f"{counts[RowState.RUNNING]} in progress"]
        if counts[RowState.FAILED]:
            words.append(f"{counts[RowState.FAILED]} failed")
        words.append(clock_time(self._state.now() - self._state.started))
        text = Text(", ".join(words), "dim")
        text.truncate(width, overflow="ellipsis")
        return text


def _is_transfer(row: Row) -> bool:
    return row.transferred is not None and row.state is RowState.RUNNING


def _transfer(row: Row, *, has_bar: bool) -> RenderableType:
    """A transfer as a bar and as text."""
    done, total = row.transferred or (0, 0)
    words = transfer_words(done, total, row.rate.per_second)
    if not has_bar:
        return Text(", ".join([words[0], *words[1:][-1:]]))  # the time left rather than the rate
    bar = ProgressBar(
        max(1, total), done, BAR, style="dim", complete_style="green", finished_style="green"
    )
    cells = Table.grid(Column(), Column(no_wrap=True), padding=(0, 1))
    cells.add_row(bar, Text(f"{done / max(1, total):4.0%} {', '.join(words)}"))
    return cells


def _name(line: _Line, width: int) -> str:
    """The name of a line in at most `width` columns.

    It is shortened in the middle: the kind and the end distinguish names.
    """
    name = _flat(line.count if line.row is None else line.row.name)
    kind, slash, rest = name.partition("/")
    if slash and cell_len(name) > width > cell_len(kind) + 8:
        while cell_len(f"{kind}/…{rest}") > width:
            rest = rest[1:]
        return f"{kind}/…{rest}"
    text = Text(name)
    text.truncate(width, overflow="ellipsis")
    return text.plain


def _flat(text: str) -> str:
    """A single line without control characters."""
    return plain(" ".join(text.split()))


def _fit(state: ProgressState, rows: Sequence[Row], most: int) -> list[_Line]:
    """At most `most` lines, with as little folded as possible."""
    for fold in ((), ENDED, (*ENDED, RowState.PLANNED)):
        lines = _fold(rows, fold)
        if len(lines) <= most:
            return lines
    counts = [
        _count_line(WORDS[folded], folded, some)
        for folded in (RowState.DONE, RowState.UNCHANGED, RowState.SKIPPED, RowState.PLANNED)
        if (some := [row for row in rows if row.state is folded])
    ]
    counted = {line.state for line in counts}
    at_work = [row for row in rows if row.state not in counted]
    urgent = sorted(at_work, key=lambda row: row.state is RowState.RUNNING)  # failures first
    room = max(0, most - len(counts))
    if len(urgent) > room:
        room = max(0, room - 1)
        states = Counter(state.description(row) for row in urgent[room:]).most_common()
        summary = ", ".join(f"{count} {word}" for word, count in states)
        count = f"{len(urgent) - room} more:"
        counts.insert(0, _Line("more", RowState.RUNNING, count=count, text=summary))
    visible = {row.address for row in urgent[:room]}
    lines = [_Line(row.group, row.state, row) for row in at_work if row.address in visible]
    return [*lines, *counts][:most]


def _fold(rows: Sequence[Row], fold: Collection[RowState]) -> list[_Line]:
    """One line per row; rows in the states of `fold` are counted per group, and many unchanged
    ones over all groups."""
    lines: list[_Line] = []
    unchanged = [row for row in rows if row.state is RowState.UNCHANGED]
    if len(unchanged) <= MAX_UNCHANGED:
        unchanged = []
    for group in dict.fromkeys(row.group for row in rows):
        group_rows = [row for row in rows if row.group == group and row not in unchanged]
        counts = {
            state: _count_line(group, state, some)
            for state in fold
            if len(some := [row for row in group_rows if row.state is state]) > 1
        }
        planned = counts.get(RowState.PLANNED)
        lines += [line for line in counts.values() if line is not planned]
        lines += [_Line(group, row.state, row) for row in group_rows if row.state not in counts]
        lines += [planned] if planned is not None else []
    if unchanged:
        lines.append(_count_line("as is", RowState.UNCHANGED, unchanged))
    return lines


def _count_line(group: str, state: RowState, rows: Sequence[Row]) -> _Line:
    names = ", ".join(row.name for row in rows)
    return _Line(group, state, count=f"{len(rows)} {WORDS[state]}:", text=names)
