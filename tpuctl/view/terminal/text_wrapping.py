"""Text width in terminal columns: characters take zero, one or two."""

from __future__ import annotations

import os
import shutil
import sys
from typing import IO

from rich.cells import cell_len, set_cell_size

TAB = "    "
COMMAND = "    "  # what a line begins with that is to be copied, such as a command
MIN_WIDTH = 20
READABLE_WIDTH = 80  # of sentences; wider ones are hard to read


def plain(text: str) -> str:
    """The text without control characters; tabs become spaces."""
    return "".join(
        TAB if letter == "\t" else letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}"
        for letter in text
    )


def wrap(text: str, width: int, *, used: int = 0, indent: str = "") -> str:
    """Wrap between words; a word longer than the width stays whole.

    The first line begins after `used` columns; the others begin with `indent`.
    """
    lines: list[str] = []
    line, room = "", width - used
    for word in text.split():
        longer = f"{line} {word}" if line else word
        if line and cell_len(longer) > room:
            lines.append(line)
            line, room = word, width - cell_len(indent)
        else:
            line = longer
    return f"\n{indent}".join([*lines, line])


def wrap_lines(text: str, width: int | None, *, indent: str = "") -> str:
    """Wrap each line on its own, and indent all. Commands, on lines that begin with four spaces,
    stay whole, so that they can be copied; without a width, all lines do."""
    return "\n".join(
        f"{indent}{_wrapped_line(line, width, indent)}" if line else "" for line in text.split("\n")
    )


def _wrapped_line(line: str, width: int | None, indent: str) -> str:
    if width is None or line.startswith(COMMAND) or cell_len(f"{indent}{line}") <= width:
        return line
    begin = line[: len(line) - len(line.lstrip())]
    margin = f"{indent}{begin}"
    return begin + wrap(line, width, used=cell_len(margin), indent=margin)


def terminal_width(stream: IO[str]) -> int | None:
    """The columns of a terminal, or of $COLUMNS; None for a file or pipe."""
    if not stream.isatty():
        return None
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        columns = 0
    if "COLUMNS" in os.environ or not columns:
        columns = shutil.get_terminal_size().columns
    return max(columns, MIN_WIDTH)


def readable_width(stream: IO[str]) -> int:
    """The columns for sentences on a terminal, or in a file or pipe."""
    return min(terminal_width(stream) or READABLE_WIDTH, READABLE_WIDTH)


def print_wrapped(text: str, file: IO[str] | None = None) -> None:
    """Print to stdout or a file, in lines that fit if it is a terminal."""
    stream = file or sys.stdout
    print(wrap_lines(text, terminal_width(stream)), file=stream, flush=True)


def cut(text: str, begin: int, width: int) -> tuple[str, int]:
    """Cut a line to `width` columns; returns it and the column of its character number `begin`.

    Cut ends are marked with an ellipsis; that character is always kept.
    """
    before = cell_len(text[:begin])
    if cell_len(text) <= width:
        return text, before
    shift = 0
    while shift < begin and cell_len(text[shift:begin]) > max(width - 20, width // 2):
        shift += 1
    if shift:
        text = "…" + text[shift:]
        before = cell_len(text[: begin - shift + 1])
    if cell_len(text) > width:
        text = set_cell_size(text, width - 1).rstrip() + "…"
    return text, before
