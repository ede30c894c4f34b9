"""Lines out of a log's bytes: those that match, or with the names of their workers.

A line ends with a line feed, a carriage return, or both, so that each state of a progress bar is
one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["LineFilter", "LineNames"]

# Of a line that does not end, what is looked at or held before it goes on.
MAX_LINE_BYTES = 1 << 20
COLORS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


class LineFilter:
    """Lets whole lines through in which the pattern is found; colors are no part of them.

    Of a line longer than a megabyte the first megabyte decides.
    """

    def __init__(self, pattern: re.Pattern[str], *, most: int = MAX_LINE_BYTES) -> None:
        self._pattern = pattern
        self._most = most
        self._rest = b""
        self._verdict: bool | None = None  # on the line that goes on, once it is too long

    @property
    def pending_bytes(self) -> int:
        """How many bytes wait for the end of their line."""
        return len(self._rest)

    def feed(self, chunk: bytes) -> bytes:
        """All lines that came to an end and match, with their own line ends."""
        lines, self._rest = _split(self._rest + chunk)
        matching = []
        for line in lines:
            verdict, self._verdict = self._verdict, None
            if self._matches(line) if verdict is None else verdict:
                matching.append(line)
        if len(self._rest) > self._most:
            if self._verdict is None:
                self._verdict = self._matches(self._rest[: self._most])
            # The last byte may be half of a line end.
            rest, self._rest = self._rest[:-1], self._rest[-1:]
            if self._verdict:
                matching.append(rest)
        return b"".join(matching)

    def finish(self) -> bytes:
        """What was left without a line end, if it matches."""
        rest, self._rest = self._rest, b""
        verdict, self._verdict = self._verdict, None
        return rest if rest and (self._matches(rest) if verdict is None else verdict) else b""

    def _matches(self, line: bytes) -> bool:
        text = line.rstrip(b"\r\n").decode("utf-8", "replace")
        if "\x1b" in text:
            text = COLORS.sub("", text)
        return self._pattern.search(text) is not None


class LineNames:
    """Puts the worker's name before each line of several workers' logs.

    A line that does not end is held until it does, or until `flush`. Where another worker speaks
    in the middle of a line that was shown so, a line feed comes between.
    """

    def __init__(self, workers: Sequence[int]) -> None:
        width = len(str(max(workers, default=0)))
        self._names = {worker: f"[worker {worker:>{width}}] ".encode() for worker in workers}
        self._pending = dict.fromkeys(workers, b"")
        self._open: int | None = None  # the worker in the middle of whose line the output is

    def feed(self, worker: int, chunk: bytes) -> bytes:
        """What of a worker's log can be shown now."""
        lines, self._pending[worker] = _split(self._pending[worker] + chunk)
        output = self._render(worker, lines)
        return (
            output + self.flush(worker) if len(self._pending[worker]) > MAX_LINE_BYTES else output
        )

    def holds(self, worker: int) -> bool:
        """Whether a line of the worker waits for its end."""
        return len(self._pending[worker]) > 0

    def flush(self, worker: int) -> bytes:
        """What a worker has said of a line so far, but for a byte that may be half a line end."""
        pending = self._pending[worker]
        keep = 1 if pending.endswith(b"\r") else 0
        self._pending[worker] = pending[len(pending) - keep :]
        return self._render(worker, [pending[: len(pending) - keep]] if len(pending) > keep else [])

    def finish(self, worker: int) -> bytes:
        """What is left of a worker's log, with a line feed where it has no line end."""
        pending, self._pending[worker] = self._pending[worker], b""
        if not pending and self._open == worker:
            self._open = None
            return b"\n"
        ended = pending if pending.endswith(b"\r") or not pending else pending + b"\n"
        return self._render(worker, [ended] if ended else [])

    def _render(self, worker: int, lines: Sequence[bytes]) -> bytes:
        if not lines:
            return b""
        name = self._names[worker]
        if self._open == worker:
            output = lines[0] + b"".join([name + line for line in lines[1:]])
        else:
            between = b"" if self._open is None else b"\n"
            output = between + b"".join([name + line for line in lines])
        self._open = None if output.endswith((b"\n", b"\r")) else worker
        return output


def _split(data: bytes) -> tuple[list[bytes], bytes]:
    """Lines with their ends, and what has no end yet."""
    # A carriage return at the very end may be half of a line end of two bytes.
    body = data[:-1] if data.endswith(b"\r") else data
    cut = max(body.rfind(b"\n"), body.rfind(b"\r")) + 1
    return data[:cut].splitlines(keepends=True), data[cut:]
