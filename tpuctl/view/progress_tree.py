"""Render progress rows as a tree that fits the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from tpuctl.view.progress_state import ProgressState, Row, RowState
from tpuctl.view.rate import bar, clock_time, transfer_words
from tpuctl.view.text_wrapping import columns, cut, plain

__all__ = ["ProgressTree", "Terminal"]

MIN_GROUP_WIDTH = 60  # columns below which group names are omitted
MAX_WIDTH = 110  # wider lines are hard to read
BAR = 12
TIME = 8  # columns of the time at the end
MAX_ROWS = 40  # ended rows that are printed individually
MIN_SUMMARY_ROWS = 6  # without a summary
MIN_FOLDED = 3  # rows that are not folded
ENDED = (RowState.DONE, RowState.UNCHANGED, RowState.SKIPPED)
FRAMES, PLAIN_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "|/-\\"
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
PLAIN_MARKS = dict(zip(STYLES, "o>+.x-!", strict=True))
WORDS = {
    RowState.PLANNED: "planned",
    RowState.RUNNING: "in progress",
    RowState.DONE: "done",
    RowState.UNCHANGED: "unchanged",
    RowState.SKIPPED: "skipped",
}


@dataclass(frozen=True)
class Terminal:
    """The size and capabilities of a terminal."""

    width: int
    height: int
    plain: bool = False  # ASCII alone


@dataclass(frozen=True)
class _Line:
    """One line of the tree: a row, or a count of folded rows."""

    group: str
    state: RowState
    row: Row | None = None
    text: str = ""


class ProgressTree:
    """Renders progress."""

    def __init__(self, story: ProgressState) -> None:
        self._state = story

    def live(self, look: Terminal) -> list[Text]:
        """The current state in the lines that fit, with a summary."""
        rows = self._state.rows
        room = max(1, look.height - 1)
        has_summary = len(rows) > MIN_SUMMARY_ROWS and room > MIN_FOLDED
        drawn = self._render(_fit(self._state, rows, room - has_summary), look)
        return [*drawn, self._summary(rows, look)] if has_summary else drawn

    def ended_lines(self, rows: Sequence[Row], look: Terminal) -> list[Text]:
        """Ended rows, for permanent output."""
        fold = {RowState.UNCHANGED, RowState.SKIPPED}
        if len(rows) > MAX_ROWS:
            fold.add(RowState.DONE)
        return self._render(_fold(rows, fold), look)

    def _render(self, lines: Sequence[_Line], look: Terminal) -> list[Text]:
        width = min(look.width - 1, MAX_WIDTH)
        groups = [line.group for line in lines] if look.width >= MIN_GROUP_WIDTH else []
        indent = max((columns(group) for group in groups), default=-1) + 1
        names = [columns(line.row.name) for line in lines if line.row is not None]
        room = width - (indent + 2 if groups else 0) - 2
        name_width = min(max(names, default=0), max(12, room * 4 // 9))
        drawn = []
        for number, line in enumerate(lines):
            text = Text(no_wrap=True)
            if groups:
                is_first = number == 0 or groups[number - 1] != line.group
                is_last = number == len(lines) - 1 or groups[number + 1] != line.group
                text.append(f"{line.group if is_first else '':<{indent}}", style="bold")
                text.append(_branch(is_first, is_last, look.plain) + " ", style="dim")
            text.append(self._mark(line.state, look), style=STYLES[line.state])
            text.append(" ")
            self._body(text, line, name_width, width, look)
            drawn.append(text)
        return drawn

    def _mark(self, standing: RowState, look: Terminal) -> str:
        if standing is RowState.RUNNING:
            frames = PLAIN_FRAMES if look.plain else FRAMES
            return frames[int(self._state.now() * 8) % len(frames)]
        return (PLAIN_MARKS if look.plain else MARKS)[standing]

    def _body(self, text: Text, line: _Line, name_width: int, width: int, look: Terminal) -> None:
        """Append name, description and time."""
        style = STYLES[line.state]
        row = line.row
        if row is None:
            left = width - columns(text.plain)
            text.append(_shorten(line.text, left, look), style=_text_style(style))
            return
        is_weak = style == "dim"
        name = _shorten_name(row.name, name_width, look)
        text.append(name + " " * (name_width - columns(name)), style="dim" if is_weak else "")
        seconds = self._state.seconds(row)
        time = "" if seconds is None else clock_time(seconds)
        left = width - columns(text.plain) - 2
        if row.transferred is not None and row.state is RowState.RUNNING:
            text.append("  ")
            text.append_text(_transfer(row, left, look))
            return
        room = left - (TIME if time else 0)
        words = _shorten(self._state.description(row), max(0, room), look)
        if words:
            text.append("  ")
            text.append(words, style=_text_style(style))
        if time and left >= TIME:
            text.append(" " * max(1, width - columns(text.plain) - len(time)))
            text.append(time, style="dim")

    def _summary(self, rows: Sequence[Row], look: Terminal) -> Text:
        counts = Counter(row.state for row in rows)
        ended = sum(counts[state] for state in (RowState.DONE, RowState.FAILED, RowState.SKIPPED))
        ended += counts[RowState.INTERRUPTED]
        all_work = len(rows) - counts[RowState.UNCHANGED]
        words = [f"{ended} of {all_work} done", f"{counts[RowState.RUNNING]} in progress"]
        if counts[RowState.FAILED]:
            words.append(f"{counts[RowState.FAILED]} failed")
        words.append(clock_time(self._state.now() - self._state.started))
        return Text(_shorten(", ".join(words), look.width - 1, look), no_wrap=True, style="dim")


def _text_style(style: str) -> str:
    """Only text of problems is colored: green is hard to read on white."""
    return "" if style in ("bold", "green") else style


def _branch(is_first: bool, is_last: bool, is_plain: bool) -> str:
    if is_plain:
        return "-" if is_first else "|"
    if is_first:
        return "─" if is_last else "┬"
    return "└" if is_last else "├"


def _transfer(row: Row, room: int, look: Terminal) -> Text:
    """A transfer as a bar and as text, shortened to fit."""
    done, total = row.transferred or (0, 0)
    words = transfer_words(done, total, row.rate.per_second)
    while len(words) > 1 and len(", ".join(words)) > room:
        words.pop(1)
    summary = ", ".join(words)
    fraction = done / max(1, total)
    text = Text(no_wrap=True)
    width = min(BAR, room - len(summary) - 6)
    if width >= 4:
        full, empty = bar(fraction, width, plain=look.plain)
        text.append(full, style="green")
        text.append(empty, style="dim")
        text.append(f" {fraction:4.0%} ")
    text.append(_shorten(summary, room, look))
    return text


def _fit(story: ProgressState, rows: Sequence[Row], most: int) -> list[_Line]:
    """At most `most` lines, with as little folded as possible."""
    folds: list[set[RowState]] = [
        {RowState.UNCHANGED},
        {RowState.UNCHANGED, RowState.SKIPPED, RowState.DONE},
        {RowState.UNCHANGED, RowState.SKIPPED, RowState.DONE, RowState.PLANNED},
    ]
    for fold in folds:
        lines = _fold(rows, fold)
        if len(lines) <= most:
            return lines
    at_work = [row for row in rows if row.state not in folds[-1]]
    urgent = sorted(at_work, key=lambda row: row.state is RowState.RUNNING)  # failures first
    lines = _counts(rows, folds[-1])
    room = max(0, most - len(lines))
    if len(urgent) > room:
        room = max(0, room - 1)
        rest = urgent[room:]
        states = Counter(story.description(row) for row in rest).most_common()
        summary = ", ".join(f"{count} {word}" for word, count in states)
        lines.insert(0, _Line("more", RowState.RUNNING, text=f"{len(rest)} more: {summary}"))
    visible = [row for row in at_work if any(row is urgent_rows for urgent_rows in urgent[:room])]
    return ([_Line(row.group, row.state, row) for row in visible] + lines)[:most]


def _fold(rows: Sequence[Row], fold: set[RowState]) -> list[_Line]:
    """One line per row; rows in the states of `fold` are counted: unchanged ones over all groups,
    others per group."""
    lines: list[_Line] = []
    whole_counts = [row for row in rows if row.state is RowState.UNCHANGED]
    few = len(whole_counts) <= MIN_FOLDED
    for group in dict.fromkeys(row.group for row in rows):
        group_rows = [row for row in rows if row.group == group]
        for standing in (RowState.DONE, RowState.SKIPPED):
            some = [row for row in group_rows if row.state is standing]
            if standing in fold and len(some) > 1:
                group_rows = [row for row in group_rows if row.state is not standing]
                lines.append(_Line(group, standing, text=_count(some, standing)))
        later = [row for row in group_rows if row.state is RowState.PLANNED]
        folds_later = RowState.PLANNED in fold and len(later) > 1
        for row in group_rows:
            if row.state is RowState.UNCHANGED and not few:
                continue
            if row.state is RowState.PLANNED and folds_later:
                continue
            lines.append(_Line(group, row.state, row))
        if folds_later:
            lines.append(_Line(group, RowState.PLANNED, text=_count(later, RowState.PLANNED)))
    if whole_counts and not few:
        lines.append(
            _Line("as is", RowState.UNCHANGED, text=_count(whole_counts, RowState.UNCHANGED))
        )
    return lines


def _counts(rows: Sequence[Row], fold: set[RowState]) -> list[_Line]:
    """One line for each folded state, over all groups."""
    lines = []
    for standing in (RowState.DONE, RowState.UNCHANGED, RowState.SKIPPED, RowState.PLANNED):
        some = [row for row in rows if row.state is standing]
        if standing in fold and some:
            lines.append(_Line(WORDS[standing], standing, text=_count(some, standing)))
    return lines


def _count(rows: Sequence[Row], standing: RowState) -> str:
    return f"{len(rows)} {WORDS[standing]}: {', '.join(row.name for row in rows)}"


def _shorten_name(name: str, room: int, look: Terminal) -> str:
    """Shorten in the middle: the kind and the end distinguish names."""
    kind, slash, rest = plain(name).partition("/")
    if columns(name) > room > columns(kind) + 8:
        while columns(f"{kind}/…{rest}") > room:
            rest = rest[1:]
        name = f"{kind}{slash}{'~' if look.plain else '…'}{rest}"
    return _shorten(name, room, look)


def _shorten(text: str, room: int, look: Terminal) -> str:
    """A single line of at most `room` columns."""
    flat = plain(" ".join(text.split()))
    if look.plain:
        flat = flat.encode("ascii", "replace").decode()
    if columns(flat) <= room:
        return flat
    if room < 2:
        return ""
    short = cut(flat, 0, room)[0]
    return short.replace("…", "~") if look.plain else short
