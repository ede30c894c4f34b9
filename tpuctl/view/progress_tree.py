"""Rows of a story as the lines of a tree, within the width and height of a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from tpuctl.view.progress_state import Row, Standing, Story
from tpuctl.view.rate import bar, clock_time, transfer_words
from tpuctl.view.text_wrapping import columns, cut, plain

__all__ = ["Look", "Tree"]

NARROW = 60  # columns, below which the groups' names are left out
WIDEST = 110  # no line needs more, and far ends are hard to follow
BAR = 12
TIME = 8  # columns of the time at the end
MOST_TOLD = 40  # rows that stay on the screen one by one
FEW_ROWS = 6  # that need no summary
FEW = 3  # rows that are not worth a count
ENDED = (Standing.DONE, Standing.UNCHANGED, Standing.SKIPPED)
FRAMES, PLAIN_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "|/-\\"
# Green, red and magenta can be read on dark and on light; the marks say the same without them.
STYLES = {
    Standing.PLANNED: "dim",
    Standing.RUNNING: "bold",
    Standing.DONE: "green",
    Standing.UNCHANGED: "dim",
    Standing.FAILED: "bold red",
    Standing.SKIPPED: "dim",
    Standing.INTERRUPTED: "magenta",
}
MARKS = dict(zip(STYLES, "○⠿✓·✗-!", strict=True))
PLAIN_MARKS = dict(zip(STYLES, "o>+.x-!", strict=True))
WORDS = {
    Standing.PLANNED: "to come",
    Standing.RUNNING: "under way",
    Standing.DONE: "done",
    Standing.UNCHANGED: "unchanged",
    Standing.SKIPPED: "skipped",
}


@dataclass(frozen=True)
class Look:
    """What a terminal can show."""

    width: int
    height: int
    plain: bool = False  # ASCII alone


@dataclass(frozen=True)
class _Line:
    """One line of the tree, in its group: a row, or several that are only counted."""

    group: str
    standing: Standing
    row: Row | None = None
    text: str = ""


class Tree:
    """Draws a story."""

    def __init__(self, story: Story) -> None:
        self._story = story

    def live(self, look: Look) -> list[Text]:
        """As it stands, in no more lines than fit, with a summary below."""
        rows = self._story.rows
        room = max(1, look.height - 1)
        has_summary = len(rows) > FEW_ROWS and room > FEW
        drawn = self._drawn(_fitting(self._story, rows, room - has_summary), look)
        return [*drawn, self._summary(rows, look)] if has_summary else drawn

    def record(self, rows: Sequence[Row], look: Look) -> list[Text]:
        """Rows that have ended, as they stay on the screen."""
        fold = {Standing.UNCHANGED, Standing.SKIPPED}
        if len(rows) > MOST_TOLD:
            fold.add(Standing.DONE)
        return self._drawn(_folded(rows, fold), look)

    def _drawn(self, lines: Sequence[_Line], look: Look) -> list[Text]:
        width = min(look.width - 1, WIDEST)
        groups = [line.group for line in lines] if look.width >= NARROW else []
        indent = max((columns(one) for one in groups), default=-1) + 1
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
            text.append(self._mark(line.standing, look), style=STYLES[line.standing])
            text.append(" ")
            self._body(text, line, name_width, width, look)
            drawn.append(text)
        return drawn

    def _mark(self, standing: Standing, look: Look) -> str:
        if standing is Standing.RUNNING:
            frames = PLAIN_FRAMES if look.plain else FRAMES
            return frames[int(self._story.now() * 8) % len(frames)]
        return (PLAIN_MARKS if look.plain else MARKS)[standing]

    def _body(self, text: Text, line: _Line, name_width: int, width: int, look: Look) -> None:
        """The name, what is said of it and the time."""
        style = STYLES[line.standing]
        row = line.row
        if row is None:
            left = width - columns(text.plain)
            text.append(_short(line.text, left, look), style=_of_words(style))
            return
        is_weak = style == "dim"
        name = _short_name(row.name, name_width, look)
        text.append(name + " " * (name_width - columns(name)), style="dim" if is_weak else "")
        seconds = self._story.seconds(row)
        time = "" if seconds is None else clock_time(seconds)
        left = width - columns(text.plain) - 2
        if row.moved is not None and row.standing is Standing.RUNNING:
            text.append("  ")
            text.append_text(_transfer(row, left, look))
            return
        room = left - (TIME if time else 0)
        said = _short(self._story.words(row), max(0, room), look)
        if said:
            text.append("  ")
            text.append(said, style=_of_words(style))
        if time and left >= TIME:
            text.append(" " * max(1, width - columns(text.plain) - len(time)))
            text.append(time, style="dim")

    def _summary(self, rows: Sequence[Row], look: Look) -> Text:
        counts = Counter(row.standing for row in rows)
        ended = sum(counts[one] for one in (Standing.DONE, Standing.FAILED, Standing.SKIPPED))
        ended += counts[Standing.INTERRUPTED]
        all_work = len(rows) - counts[Standing.UNCHANGED]
        words = [f"{ended} of {all_work} done", f"{counts[Standing.RUNNING]} under way"]
        if counts[Standing.FAILED]:
            words.append(f"{counts[Standing.FAILED]} failed")
        words.append(clock_time(self._story.now() - self._story.began))
        return Text(_short(", ".join(words), look.width - 1, look), no_wrap=True, style="dim")


def _of_words(style: str) -> str:
    """Words are colored where something is wrong: green is hard to read on white."""
    return "" if style in ("bold", "green") else style


def _branch(is_first: bool, is_last: bool, is_plain: bool) -> str:
    if is_plain:
        return "-" if is_first else "|"
    if is_first:
        return "─" if is_last else "┬"
    return "└" if is_last else "├"


def _transfer(row: Row, room: int, look: Look) -> Text:
    """Bytes as a bar and in words, as many of them as there is room for."""
    done, total = row.moved or (0, 0)
    words = transfer_words(done, total, row.rate.per_second)
    while len(words) > 1 and len(", ".join(words)) > room:
        words.pop(1)
    said = ", ".join(words)
    fraction = done / max(1, total)
    text = Text(no_wrap=True)
    width = min(BAR, room - len(said) - 6)
    if width >= 4:
        full, empty = bar(fraction, width, plain=look.plain)
        text.append(full, style="green")
        text.append(empty, style="dim")
        text.append(f" {fraction:4.0%} ")
    text.append(_short(said, room, look))
    return text


def _fitting(story: Story, rows: Sequence[Row], most: int) -> list[_Line]:
    """The lines with the least folded away that are no more than `most`."""
    folds: list[set[Standing]] = [
        {Standing.UNCHANGED},
        {Standing.UNCHANGED, Standing.SKIPPED, Standing.DONE},
        {Standing.UNCHANGED, Standing.SKIPPED, Standing.DONE, Standing.PLANNED},
    ]
    for fold in folds:
        lines = _folded(rows, fold)
        if len(lines) <= most:
            return lines
    at_work = [row for row in rows if row.standing not in folds[-1]]
    urgent = sorted(at_work, key=lambda row: row.standing is Standing.RUNNING)  # failures first
    lines = _counts(rows, folds[-1])
    room = max(0, most - len(lines))
    if len(urgent) > room:
        room = max(0, room - 1)
        rest = urgent[room:]
        states = Counter(story.words(row) for row in rest).most_common()
        told = ", ".join(f"{count} {word}" for word, count in states)
        lines.insert(0, _Line("more", Standing.RUNNING, text=f"{len(rest)} more: {told}"))
    shown = [row for row in at_work if any(row is one for one in urgent[:room])]
    return ([_Line(row.group, row.standing, row) for row in shown] + lines)[:most]


def _folded(rows: Sequence[Row], fold: set[Standing]) -> list[_Line]:
    """Each row in a line, those of some standings counted: of all groups what is unchanged, and
    in each group the others."""
    lines: list[_Line] = []
    whole_counts = [row for row in rows if row.standing is Standing.UNCHANGED]
    few = len(whole_counts) <= FEW
    for group in dict.fromkeys(row.group for row in rows):
        ours = [row for row in rows if row.group == group]
        for standing in (Standing.DONE, Standing.SKIPPED):
            some = [row for row in ours if row.standing is standing]
            if standing in fold and len(some) > 1:
                ours = [row for row in ours if row.standing is not standing]
                lines.append(_Line(group, standing, text=_count(some, standing)))
        later = [row for row in ours if row.standing is Standing.PLANNED]
        folds_later = Standing.PLANNED in fold and len(later) > 1
        for row in ours:
            if row.standing is Standing.UNCHANGED and not few:
                continue
            if row.standing is Standing.PLANNED and folds_later:
                continue
            lines.append(_Line(group, row.standing, row))
        if folds_later:
            lines.append(_Line(group, Standing.PLANNED, text=_count(later, Standing.PLANNED)))
    if whole_counts and not few:
        lines.append(
            _Line("as is", Standing.UNCHANGED, text=_count(whole_counts, Standing.UNCHANGED))
        )
    return lines


def _counts(rows: Sequence[Row], fold: set[Standing]) -> list[_Line]:
    """One line for each standing that is folded, of all groups together."""
    lines = []
    for standing in (Standing.DONE, Standing.UNCHANGED, Standing.SKIPPED, Standing.PLANNED):
        some = [row for row in rows if row.standing is standing]
        if standing in fold and some:
            lines.append(_Line(WORDS[standing], standing, text=_count(some, standing)))
    return lines


def _count(rows: Sequence[Row], standing: Standing) -> str:
    return f"{len(rows)} {WORDS[standing]}: {', '.join(row.name for row in rows)}"


def _short_name(name: str, room: int, look: Look) -> str:
    """Cut where it tells least: its kind and its end are what differs."""
    kind, slash, rest = plain(name).partition("/")
    if columns(name) > room > columns(kind) + 8:
        while columns(f"{kind}/…{rest}") > room:
            rest = rest[1:]
        name = f"{kind}{slash}{'~' if look.plain else '…'}{rest}"
    return _short(name, room, look)


def _short(text: str, room: int, look: Look) -> str:
    """On one line, cut to so many columns."""
    flat = plain(" ".join(text.split()))
    if look.plain:
        flat = flat.encode("ascii", "replace").decode()
    if columns(flat) <= room:
        return flat
    if room < 2:
        return ""
    short = cut(flat, 0, room)[0]
    return short.replace("…", "~") if look.plain else short
