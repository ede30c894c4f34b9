"""A clock for tests of polling: time passes only by sleeping."""

from __future__ import annotations


class FakeClock:
    """A `tpuctl.polling.Clock` that never sleeps, and records the requested delays."""

    def __init__(self, time: float = 0.0) -> None:
        self.time = time
        self.slept: list[float] = []

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds


class InstantClock:
    """A clock with instant sleeps, which always shows the same time."""

    def now(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        pass
