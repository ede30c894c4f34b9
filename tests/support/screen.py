"""A minimal terminal emulator: enough for lines that are redrawn in place."""

from __future__ import annotations

import re

CONTROL = re.compile(r"\x1b\[(\?)?([0-9;]*)([A-Za-z])")


class Screen:
    """Lines with a cursor, the last of which are visible; wide letters count as one.

    Raises on anything other than text, colors and the supported cursor movements.
    """

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.modes: list[str] = []  # set or reset, such as "25l"
        self.colors: set[str] = set()
        self._lines = [""]
        self._row = self._column = 0

    @property
    def lines(self) -> list[str]:
        """All lines, including scrolled ones, without empty lines at the end."""
        return "\n".join(line.rstrip() for line in self._lines).rstrip("\n").split("\n")

    def resize(self, columns: int) -> None:
        """Rewrap longer lines, as terminals do; the cursor stays in its line."""
        lines: list[str] = []
        for number, line in enumerate(self._lines):
            if number == self._row:
                row = len(lines) + self._column // columns
            lines += [line[at : at + columns] for at in range(0, len(line), columns)] or [""]
        self.columns, self._lines = columns, lines
        self._row, self._column = row, self._column % columns

    def feed(self, text: str) -> None:
        position = 0
        while position < len(text):
            if text[position] == "\x1b":
                match = CONTROL.match(text, position)
                assert match is not None, f"unknown control: {text[position : position + 20]!r}"
                self._control(match[1] or "", match[2], match[3])
                position = match.end()
            else:
                self._put(text[position])
                position += 1

    def _control(self, private: str, number: str, letter: str) -> None:
        if private:
            self.modes.append(number + letter)
        elif letter == "m":
            self.colors |= set(number.split(";")) - {"", "0"}
        elif letter == "A":
            top = max(0, len(self._lines) - self.rows)
            self._row = max(top, self._row - int(number or 1))
        elif letter == "B":
            self._row = min(len(self._lines) - 1, self._row + int(number or 1))
        elif letter == "K" and number == "2":
            self._lines[self._row] = ""
        else:
            raise AssertionError(f"unknown control: {number}{letter}")

    def _put(self, letter: str) -> None:
        if letter == "\r":
            self._column = 0
        elif letter == "\n":
            self._column = 0
            self._down()
        else:
            if self._column == self.columns:
                self._column = 0
                self._down()
            line = self._lines[self._row].ljust(self._column)
            self._lines[self._row] = line[: self._column] + letter + line[self._column + 1 :]
            self._column += 1

    def _down(self) -> None:
        self._row += 1
        if self._row == len(self._lines):
            self._lines.append("")
