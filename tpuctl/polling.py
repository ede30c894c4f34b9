"""Polling with backoff and a timeout, on a clock that tests can replace."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from tpuctl.errors import TimedOut

T = TypeVar("T")


class Clock(Protocol):
    """A monotonic clock. Tests pass one that never sleeps."""

    def now(self) -> float:
        """Seconds on a monotonic clock."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@dataclass(frozen=True)
class Backoff:
    """Exponential backoff: `initial` seconds, then `multiplier` times longer each, up to
    `maximum`."""

    initial: float = 0.5
    maximum: float = 2.0
    multiplier: float = 1.5

    def delays(self) -> Iterator[float]:
        delay = self.initial
        while True:
            yield delay
            delay = min(delay * self.multiplier, self.maximum)


async def gather_all(work: Iterable[Awaitable[T]]) -> list[T]:
    """Await all concurrently; once all have ended, raises the first failure, in their order."""
    outcomes = await asyncio.gather(*work, return_exceptions=True)
    results: list[T] = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        results.append(outcome)
    return results


async def cancel(task: asyncio.Future[Any]) -> None:
    """Cancel a task and wait for its end, whatever that is; one that has ended stays as it is."""
    if not task.done():
        task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await task


async def wait_until(
    probe: Callable[[], Awaitable[T | None]],
    *,
    description: str,
    seconds: float,
    backoff: Backoff = Backoff(),
    clock: Clock | None = None,
) -> T:
    """Call `probe` until it returns something other than None, and return that.

    Raises TimedOut with `description` after `seconds`; the last sleep is shortened so that the
    final call falls on the deadline.
    """
    clock = clock or SystemClock()
    deadline = clock.now() + seconds
    for delay in backoff.delays():
        result = await probe()
        if result is not None:
            return result
        remaining = deadline - clock.now()
        if remaining <= 0:
            raise TimedOut(
                "Timed out waiting",
                f"{description} did not happen within {seconds:.0f} s",
                hint="Repeat the command: it continues where it stopped. To see the current "
                "state:\n"
                "    tpuctl status",
            )
        await clock.sleep(min(delay, remaining))
    raise AssertionError("backoff never ends")
