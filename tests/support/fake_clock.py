"""A clock for what waits: time passes by sleeping alone."""

from __future__ import annotations

__all__ = ["FakeClock"]


class FakeClock:
    """A `tpuctl.waiting.Clock` that never sleeps, and keeps how long it was asked to."""

    def __init__(self, time: float = 0.0) -> None:
        self.time = time
        self.slept: list[float] = []

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds
