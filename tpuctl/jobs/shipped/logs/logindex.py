"""Offsets in a log: N lines before its end, or at a timestamp.

Pure functions on bytes, for workers, to which this file is sent as it is, and for readers of the
bucket's copy: standard library only, Python 3.8 and later, and it imports none of the others.

Lines are counted by line feeds, as in `tail`: all updates of a progress bar are one line. For
timestamps, a carriage return ends a line too.
"""

from __future__ import annotations

import bisect
import math
import re

BLOCK_BYTES = 1 << 16  # bytes that are searched at a time
LINE_END = re.compile(rb"\n|\r(?!\n)")
MAX_TIMESTAMPS = 2048
MIN_INTERVAL = 1.0  # seconds between them,
RELATIVE_INTERVAL = 0.01  # or if there are too many, this fraction of their age


class LastLines:
    """Searches a log backwards for the beginning of its last `lines` lines.

        search = LastLines(size, 10)
        while not search.is_over:
            search.look(read(search.begin, search.length))

    Afterwards `begins_at` is their offset. If `lines` is not 0 then, that many more lines may begin
    in the part that could not be read.
    """

    def __init__(self, size: int, lines: int, *, earliest: int = 0, readable: int = 0) -> None:
        """The result is at least `earliest`, where a line begins; bytes before `readable` cannot
        be read."""
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
        """The offset of the next block to search."""
        return max(self._first, self._before - BLOCK_BYTES)

    @property
    def length(self) -> int:
        return self._before - self.begin

    def feed(self, data: bytes) -> None:
        """Search the next block; if it is shorter than `length`, no more can be read."""
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


def line_start(data: bytes, begin: int, offset: int) -> int:
    """The beginning of the line that contains an offset; the offset itself if `data` lacks it.

    `data` is the log from `begin` to one byte beyond the offset: a line end may have two bytes.
    """
    ends = [begin + end.end() for end in LINE_END.finditer(data)]
    return max((end for end in ends if end <= offset), default=offset if begin else 0)


class LogTimestamps:
    """The sizes of a log over time, as a text of bounded size: `<seconds> <bytes>` per line.

    Seconds since the epoch, the latest that the machine's clock has shown: they never decrease.
    Old points are thinned out, which can make a result too early, but never too late.
    """

    def __init__(self, text: bytes = b"") -> None:
        self._points: list[tuple[float, int]] = []
        self._latest = self._recorded = 0.0  # readings of the clock
        for line in text.splitlines(keepends=True):
            seconds, _, length = line.partition(b" ")
            try:
                moment, size = float(seconds), int(length)
                # Without a line feed it is still being written.
                if line.endswith(b"\n") and math.isfinite(moment) and size >= 0:
                    self._latest = self._recorded = max(moment, self._latest)
                    self._points.append((self._latest, size))
            except ValueError:
                continue

    @property
    def length(self) -> int:
        """The last recorded size."""
        return self._points[-1][1] if self._points else 0

    def record(self, now: float, length: int) -> bytes | None:
        """Record a size, if it has changed and the last one is at least MIN_INTERVAL old.

        Returns the line to append to the text, or None; see also `is_long`.
        """
        self._latest = max(now, self._latest)
        if self._points:
            is_recent = 0 <= now - self._recorded < MIN_INTERVAL  # negative if set back
            if self.length == length or is_recent:
                return None
        self._recorded = now
        self._points.append((math.ceil(self._latest * 1000) / 1000, length))  # up is safe
        return _line(*self._points[-1])

    @property
    def is_long(self) -> bool:
        """Whether the text must be replaced by `thin`."""
        return len(self._points) > MAX_TIMESTAMPS

    def thin(self) -> bytes:
        """The whole text, after dropping points that are close to others."""
        latest = before = self._points[-1][0]
        kept_points = [self._points[-1]]
        for seconds, length in self._points[-2:0:-1]:
            if before - seconds >= max(MIN_INTERVAL, (latest - before) * RELATIVE_INTERVAL):
                kept_points.append((seconds, length))
                before = seconds
        self._points = [self._points[0], *reversed(kept_points)]
        return b"".join(_line(*point) for point in self._points)

    def length_at(self, timestamp: float) -> int:
        """A size that the log had before a timestamp: everything written since then is after it.

        If the machine's clock was set back, the earliest one possible.
        """
        index = bisect.bisect_left(self._points, (timestamp,))
        return self._points[index - 1][1] if index else 0


def _line(seconds: float, length: int) -> bytes:
    return b"%.3f %d\n" % (seconds, length)
