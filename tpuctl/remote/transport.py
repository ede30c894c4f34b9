"""The interface of a connection to a worker, and retries after drops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from tpuctl.errors import RemoteFailed, Transient, Unreachable
from tpuctl.polling import Backoff

T = TypeVar("T")
Progress = Callable[[int, int], None]  # bytes done, total bytes
RETRY = Backoff(initial=0.1, maximum=5.0, multiplier=2.0)
RETRY_SECONDS = 60.0


async def with_retries(work: Callable[[], Awaitable[T]]) -> T:
    """Await `work`, which must be idempotent, with retries after dropped connections.

    Raises the last failure once RETRY_SECONDS have passed since the first drop. A worker that was
    unreachable from the start is not retried.
    """
    delays = RETRY.delays()
    deadline: float | None = None
    while True:
        try:
            return await work()
        except Unreachable as error:
            if deadline is None:
                if not isinstance(error, Transient):
                    raise
                deadline = time.monotonic() + RETRY_SECONDS
            if time.monotonic() >= deadline:
                raise
        await asyncio.sleep(next(delays))


@dataclass(frozen=True)
class Result:
    """The result of a command. `exit_code` is 128 + n if signal n ended it."""

    exit_code: int
    stdout: bytes = b""
    stderr: bytes = b""

    def check(self, subject: str) -> Result:
        """Return this result; raises RemoteFailed with the command's output if it failed."""
        if self.exit_code == 0:
            return self
        output = (self.stderr or self.stdout).decode(errors="replace").strip()
        raise RemoteFailed(
            "Command on a worker failed",
            f"{subject}: exit code {self.exit_code}: {output}",
            hint="Try the command on the worker:\n    tpuctl ssh",
        )


class Stream(Protocol):
    """A running command whose output is streamed."""

    def chunks(self) -> AsyncIterator[bytes]:
        """Its stdout, in chunks of any size. Raises Transient if the connection drops."""
        ...

    async def read_line(self) -> bytes:
        """The next line of its stdout; without a newline, or empty, if the output ended."""
        ...

    def write(self, data: bytes) -> None:
        """Send data to its stdin, if it was opened with input. Raises Transient."""
        ...

    async def result(self) -> Result:
        """Its exit code and stderr; call after the last chunk."""
        ...

    def close(self) -> None: ...


class Transport(Protocol):
    """Commands and files on one worker, over a connection that is opened on demand and kept.

    Paths are relative to the user's home. Every method raises Unreachable if it cannot connect, and
    Transient (a subclass) if the connection drops: the next call reconnects. `run` and `put` retry
    by themselves, as in `with_retries`.
    """

    @property
    def worker(self) -> int: ...

    @property
    def name(self) -> str:
        """The worker as users see it."""
        ...

    async def run(self, argv: Sequence[str], *, input: bytes | None = None) -> Result:
        """Run an idempotent command: after a dropped connection it is sent again, though it may
        have run, or still be running.
        """
        ...

    def stream(self, argv: Sequence[str]) -> AbstractAsyncContextManager[Stream]: ...

    async def open_stream(self, argv: Sequence[str], *, input: bytes | None = None) -> Stream:
        """Start a command and send it `input`, after which its stdin stays open; close it."""
        ...

    def keep(self, name: str, stream: Stream) -> None:
        """Keep a stream for `take`, instead of any other; it ends with the connection.

        Only one is kept.
        """
        ...

    def take(self, name: str) -> Stream | None:
        """The stream kept with this name, which the caller closes."""
        ...

    async def put(
        self,
        source: bytes | Path,
        path: str,
        *,
        mode: int = 0o644,
        progress: Progress | None = None,
    ) -> None:
        """Write a file atomically, creating its folders."""
        ...

    async def close(self) -> None: ...
