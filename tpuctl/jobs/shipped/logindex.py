"""Places in a log: so many lines before its end, or where it was at a moment.

Plain functions of bytes, for a worker, where this file is sent as it is, and for readers of the
bucket's copy: standard library only, Python 3.8 and later, and it imports none of the others.

Lines are counted by their line feeds, as `tail` does: all states of a progress bar are one. Where
one may begin that was written since a moment, a carriage return ends one too.
"""

from __future__ import annotations

import bisect
import math
import re

__all__ = ["BLOCK", "LINE_END", "LastLines", "LogTimestamps", "line_begin"]

BLOCK = 1 << 16  # bytes that are looked through at a time
LINE_END = re.compile(rb"\n|\r(?!\n)")
MAX_TIMESTAMPS = 2048
MIN_INTERVAL = 1.0  # seconds between them,
RELATIVE_INTERVAL = 0.01  # or if there are too many, this fraction of their age


class LastLines:
    """Looks for the beginning of the last `lines` lines, from the end of a log backwards.

        search = LastLines(size, 10)
        while not search.is_over:
            search.look(read(search.begin, search.length))

    Afterwards `found` is where they begin. If `lines` is not 0 then, what is before could not be
    read, and so many more may begin there.
    """

    def __init__(self, size: int, lines: int, *, earliest: int = 0, readable: int = 0) -> None:
        """Nothing before byte `earliest`, where a line begins, is wanted; nothing before byte
        `readable` can be read."""
        self.begins_at = self._before = size
        self.lines = lines
        self._earliest = earliest
        self._first = max(earliest, readable)
        self._size = size
        if size <= earliest:
            self.lines = 0
        self.is_over = self.lines == 0 or size <= self._first

    @property
    def begin(self) -> int:
        """The first byte that is to be looked through next."""
        return max(self._first, self._before - BLOCK)

    @property
    def length(self) -> int:
        return self._before - self.begin

    def look(self, data: bytes) -> None:
        """Take the bytes that were asked for; if they are fewer, no more can be read."""
        begin = self.begin
        if len(data) < self.length:
            self.is_over = True
            return
        ends = [
            begin + end.end() for end in re.finditer(rb"\n", data) if begin + end.end() < self._size
        ][-self.lines :]
        if ends:
            self.begins_at = ends[0]
            self.lines -= len(ends)
        self._before = begin
        if begin == self._earliest and self.lines:
            self.begins_at, self.lines = begin, 0
        self.is_over = self.lines == 0 or begin == self._first


def line_begin(data: bytes, begin: int, place: int) -> int:
    """Where the line, or the state of one, begins that a place is in; the place itself where that
    cannot be seen.

    `data` is the log from `begin` to one byte beyond the place: a line end may have two bytes.
    """
    ends = [begin + end.end() for end in LINE_END.finditer(data)]
    return max((end for end in ends if end <= place), default=place if begin else 0)


class LogTimestamps:
    """The lengths of a log by time, as a text of bounded size: `<seconds> <bytes>` per line.

    Seconds are of the epoch, by the clock of the machine. The further back, the fewer are kept:
    one that is missing makes an answer earlier, never too late.
    """

    def __init__(self, text: bytes = b"") -> None:
        self._points: list[tuple[float, int]] = []
        for line in text.splitlines(keepends=True):
            seconds, _, length = line.partition(b" ")
            try:
                if line.endswith(b"\n"):  # else it is still being written
                    self._points.append((float(seconds), int(length)))
            except ValueError:
                continue

    @property
    def length(self) -> int:
        """The length last remembered."""
        return self._points[-1][1] if self._points else 0

    def note(self, now: float, length: int) -> bytes | None:
        """Remember a length, if it is another and the last one was no moment ago.

        Returns the line that the text grew by, or None. A longer log needs no more than that;
        see `is_long`.
        """
        if self._points:
            seconds, last_length = self._points[-1]
            if last_length == length or 0 <= now - seconds < MIN_INTERVAL:
                return None
        now = math.ceil(now * 1000) / 1000  # as it is written: later is safe
        self._points.append((now, length))
        return _line(now, length)

    @property
    def is_long(self) -> bool:
        """Whether it is time for `thinned`."""
        return len(self._points) > MAX_TIMESTAMPS

    def thinned(self) -> bytes:
        """The whole text, after dropping points that are close to others."""
        latest = before = self._points[-1][0]
        kept_points = [self._points[-1]]
        for seconds, length in self._points[-2:0:-1]:
            if before - seconds >= max(MIN_INTERVAL, (latest - before) * RELATIVE_INTERVAL):
                kept_points.append((seconds, length))
                before = seconds
        self._points = [self._points[0], *reversed(kept_points)]
        return b"".join(_line(*point) for point in self._points)

    def length_at(self, moment: float) -> int:
        """A length that the log had before a moment: all that was written since is behind it.

        Where the machine's clock was set back, as early as anything can be from then on.
        """
        latest: list[float] = []
        for seconds, _ in self._points:
            latest.append(max(seconds, latest[-1]) if latest else seconds)
        place = bisect.bisect_left(latest, moment)
        return self._points[place - 1][1] if place else 0


def _line(seconds: float, length: int) -> bytes:
    return b"%.3f %d\n" % (seconds, length)
