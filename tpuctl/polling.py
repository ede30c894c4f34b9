"""Waiting: a clock that can be handed over, backoff, the one polling loop, several at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

from tpuctl.errors import TimedOut

__all__ = ["Backoff", "Clock", "SystemClock", "all_ended", "wait_until"]

T = TypeVar("T")


class Clock(Protocol):
    """What waiting needs of time. Tests pass one that never sleeps."""

    def now(self) -> float:
        """Seconds on a clock that never goes back."""
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
    """How long to wait between tries: `first` seconds, then `factor` times more, at most `most`."""

    first: float = 0.5
    most: float = 2.0
    factor: float = 1.5

    def delays(self) -> Iterator[float]:
        delay = self.first
        while True:
            yield delay
            delay = min(delay * self.factor, self.most)


async def all_ended(work: Iterable[Awaitable[T]]) -> list[T]:
    """Await all at once; the first failure, in their order, is raised when every one has ended."""
    outcomes = await asyncio.gather(*work, return_exceptions=True)
    answers: list[T] = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        answers.append(outcome)
    return answers


async def wait_until(
    probe: Callable[[], Awaitable[T | None]],
    *,
    what: str,
    seconds: float,
    backoff: Backoff = Backoff(),
    clock: Clock | None = None,
) -> T:
    """Call `probe` until it answers something other than None, and return that.

    Raises TimedOut, naming `what`, once `seconds` have passed; the last sleep is cut short so
    that a final try falls on the deadline itself.
    """
    clock = clock or SystemClock()
    deadline = clock.now() + seconds
    for delay in backoff.delays():
        answer = await probe()
        if answer is not None:
            return answer
        left = deadline - clock.now()
        if left <= 0:
            raise TimedOut(
                "Gave up waiting",
                f"{what} did not happen within {seconds:.0f} s",
                hint="Repeat the command: it goes on where it stopped. How things stand:\n"
                "    tpuctl status",
            )
        await clock.sleep(min(delay, left))
    raise AssertionError("backoff never ends")
