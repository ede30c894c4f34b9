"""Splits a log into lines, to filter them or to prefix them with their worker.

A line ends with a line feed, a carriage return, or both: each update of a progress bar is a line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tpuctl.model.workers.worker_numbering import ONE_SLICE, WorkerNumbering

MAX_LINE_BYTES = 1 << 20  # of a line without an end that are matched or held
COLORS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


class LineFilter:
    """Passes whole lines that match the pattern, which does not see color sequences.

    Of a line longer than the maximum, only the beginning is matched.
    """

    def __init__(self, pattern: re.Pattern[str], *, max_bytes: int = MAX_LINE_BYTES) -> None:
        self._pattern = pattern
        self._max_bytes = max_bytes
        self._pending = b""
        self._verdict: bool | None = None  # on the current line, once it is too long

    @property
    def pending_bytes(self) -> int:
        """The size of the incomplete line."""
        return len(self._pending)

    def feed(self, chunk: bytes) -> bytes:
        """The matching lines that the chunk completes, with their line ends."""
        lines, self._pending = _split(self._pending + chunk)
        matching = []
        for line in lines:
            verdict, self._verdict = self._verdict, None
            if self._matches(line) if verdict is None else verdict:
                matching.append(line)
        if len(self._pending) > self._max_bytes:
            if self._verdict is None:
                self._verdict = self._matches(self._pending[: self._max_bytes])
            # The last byte may be the first half of a line end.
            flushed, self._pending = self._pending[:-1], self._pending[-1:]
            if self._verdict:
                matching.append(flushed)
        return b"".join(matching)

    def finish(self) -> bytes:
        """The incomplete last line, if it matches."""
        rest, self._pending = self._pending, b""
        verdict, self._verdict = self._verdict, None
        return rest if rest and (self._matches(rest) if verdict is None else verdict) else b""

    def _matches(self, line: bytes) -> bool:
        text = line.rstrip(b"\r\n").decode("utf-8", "replace")
        if "\x1b" in text:
            text = COLORS.sub("", text)
        return self._pattern.search(text) is not None


class LinePrefixer:
    """Merges the logs of several workers, prefixing each line with its worker.

    An incomplete line is held until it ends, or until `flush`. If another worker's line follows a
    flushed one, a line feed is inserted.
    """

    def __init__(self, workers: Sequence[int], numbering: WorkerNumbering = ONE_SLICE) -> None:
        names = {worker: numbering.name(worker) for worker in workers}
        width = max(map(len, names.values()), default=0)
        self._prefixes = {
            worker: f"[worker {name:>{width}}] ".encode() for worker, name in names.items()
        }
        self._pending = dict.fromkeys(workers, b"")
        self._open: int | None = None  # the worker whose incomplete line was flushed last

    def feed(self, worker: int, chunk: bytes) -> bytes:
        """The output that a chunk of a worker's log allows."""
        lines, self._pending[worker] = _split(self._pending[worker] + chunk)
        output = self._render(worker, lines)
        return (
            output + self.flush(worker) if len(self._pending[worker]) > MAX_LINE_BYTES else output
        )

    def is_holding(self, worker: int) -> bool:
        """Whether an incomplete line of the worker is held."""
        return len(self._pending[worker]) > 0

    def flush(self, worker: int) -> bytes:
        """The held part of a worker's line, except a byte that may be half a line end."""
        pending = self._pending[worker]
        keep = 1 if pending.endswith(b"\r") else 0
        self._pending[worker] = pending[len(pending) - keep :]
        return self._render(worker, [pending[: len(pending) - keep]] if len(pending) > keep else [])

    def finish(self, worker: int) -> bytes:
        """The rest of a worker's log, with a line feed if it has no line end."""
        pending, self._pending[worker] = self._pending[worker], b""
        if not pending and self._open == worker:
            self._open = None
            return b"\n"
        line = pending if pending.endswith(b"\r") or not pending else pending + b"\n"
        return self._render(worker, [line] if line else [])

    def _render(self, worker: int, lines: Sequence[bytes]) -> bytes:
        if not lines:
            return b""
        prefix = self._prefixes[worker]
        if self._open == worker:
            output = lines[0] + b"".join([prefix + line for line in lines[1:]])
        else:
            between = b"" if self._open is None else b"\n"
            output = between + b"".join([prefix + line for line in lines])
        self._open = None if output.endswith((b"\n", b"\r")) else worker
        return output


def _split(data: bytes) -> tuple[list[bytes], bytes]:
    """Complete lines with their line ends, and the incomplete rest."""
    # A final carriage return may be the first half of a line end.
    body = data[:-1] if data.endswith(b"\r") else data
    end = max(body.rfind(b"\n"), body.rfind(b"\r")) + 1
    return data[:end].splitlines(keepends=True), data[end:]
