"""What the rest needs of a connection to a worker."""

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

__all__ = ["Progress", "Result", "Stream", "Transport", "retried"]

T = TypeVar("T")
Progress = Callable[[int, int], None]  # bytes done, bytes in all
RETRY = Backoff(first=0.1, most=5.0, factor=2.0)
RETRY_SECONDS = 60.0


async def retried(work: Callable[[], Awaitable[T]]) -> T:
    """Await `work`, which must be safe to repeat, again after each dropped connection.

    Raises the last failure once RETRY_SECONDS have passed since the first drop. A worker that
    could not be reached to begin with is not waited for.
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
    """How a command ended. `exit_code` is 128 + n when signal n ended it."""

    exit_code: int
    stdout: bytes = b""
    stderr: bytes = b""

    def checked(self, what: str) -> Result:
        """This result, or RemoteFailed with what the command said, when it did not succeed."""
        if self.exit_code == 0:
            return self
        said = (self.stderr or self.stdout).decode(errors="replace").strip()
        raise RemoteFailed(
            "Command on a worker failed",
            f"{what}: exit code {self.exit_code}: {said}",
            hint="Try it there by hand:\n    tpuctl ssh",
        )


class Stream(Protocol):
    """A running command whose output is read as it comes."""

    def chunks(self) -> AsyncIterator[bytes]:
        """Its stdout, in pieces of any size. Raises Transient when the connection drops."""
        ...

    async def result(self) -> Result:
        """How it ended, with its stderr; call after the last chunk."""
        ...


class Transport(Protocol):
    """Commands and files on one worker, over a connection made when needed and kept.

    Paths are relative to the user's home. Every method raises Unreachable when no connection can
    be made and Transient (which is one) when it drops: a new call connects again. `run` and `put`
    do so by themselves first, as `retried` does.
    """

    @property
    def worker(self) -> int: ...

    async def run(self, argv: Sequence[str], *, input: bytes | None = None) -> Result:
        """How a command ended that is safe to repeat: it may have run already, or run still, when
        it is sent again because the connection dropped before its answer came.
        """
        ...

    def stream(self, argv: Sequence[str]) -> AbstractAsyncContextManager[Stream]: ...

    async def put(
        self,
        source: bytes | Path,
        path: str,
        *,
        mode: int = 0o644,
        progress: Progress | None = None,
    ) -> None:
        """Write a file, folders included: whole or not at all, even if the connection drops."""
        ...

    async def close(self) -> None: ...
