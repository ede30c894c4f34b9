"""Text width in terminal columns: characters take zero, one or two."""

from __future__ import annotations

from rich.cells import cell_len, set_cell_size

__all__ = ["cut", "plain", "wrap"]

TAB = "    "


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
