"""The last lines of a log."""

from __future__ import annotations

import re
from collections import deque

from tpuctl.model.text.terminal_text import without_control_characters

LINE_END = re.compile(rb"\r?\n|\r(?!\Z)")  # a final carriage return may be half a line end
MAX_LINE_BYTES = 1 << 12  # of a line, more is dropped


class LogTail:
    """Collects the last lines of a log that is fed in chunks, in constant memory.

    A line ends with a line feed, a carriage return, or both. Its text has no control characters.
    """

    def __init__(self, most: int) -> None:
        self.line_count = 0  # complete lines so far
        self._ends: deque[bytes] = deque(maxlen=most)
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Add the next bytes of the log."""
        *lines, rest = LINE_END.split(self._rest + data)
        self.line_count += len(lines)
        self._ends.extend(line[:MAX_LINE_BYTES] for line in lines[-(self._ends.maxlen or 0) :])
        self._rest = rest[:MAX_LINE_BYTES] + rest[MAX_LINE_BYTES:][-1:]  # maybe a carriage return

    @property
    def lines(self) -> list[str]:
        """The last complete lines."""
        return [_text(line) for line in self._ends]

    @property
    def incomplete_line(self) -> str:
        """What follows the last line end."""
        return _text(self._rest)

    def text(self, count: int) -> str:
        """The last lines as a text, the incomplete one included."""
        return "\n".join([*self.lines, self.incomplete_line][-count:]).strip("\n")


def _text(line: bytes) -> str:
    return without_control_characters(line.decode("utf-8", "replace")).rstrip()
