"""The shared polling loop, on a clock that never sleeps."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.fake_clock import FakeClock
from tpuctl.errors import TimedOut
from tpuctl.polling import Backoff, gather_all, wait_until


async def test_delays_grow_to_maximum() -> None:
    clock = FakeClock(100.0)

    async def probe() -> str | None:
        return "there" if clock.time >= 110 else None

    backoff = Backoff(initial=1, maximum=4, multiplier=2)
    assert (
        await wait_until(probe, description="it", seconds=60, backoff=backoff, clock=clock)
        == "there"
    )
    assert clock.slept == [1, 2, 4, 4]


async def test_last_probe_is_at_deadline() -> None:
    clock = FakeClock(100.0)
    tries: list[float] = []

    async def probe() -> None:
        tries.append(clock.time)

    with pytest.raises(TimedOut, match="the node becoming READY"):
        await wait_until(
            probe,
            description="the node becoming READY",
            seconds=5,
            backoff=Backoff(initial=2, maximum=8, multiplier=2),
            clock=clock,
        )
    assert tries[-1] == 105.0


async def test_immediate_result_does_not_sleep() -> None:
    clock = FakeClock(100.0)

    async def probe() -> int:
        return 0  # falsy, but not None

    assert await wait_until(probe, description="it", seconds=1, clock=clock) == 0
    assert clock.slept == []


async def test_gather_all_raises_first_failure_after_all_ended() -> None:
    ended: list[str] = []

    async def work(name: str, turns: int, error: Exception | None) -> str:
        for _ in range(turns):
            await asyncio.sleep(0)
        ended.append(name)
        if error:
            raise error
        return name

    assert await gather_all([work("a", 2, None), work("b", 0, None)]) == ["a", "b"]
    ended.clear()
    with pytest.raises(KeyError):
        await gather_all([work("a", 9, None), work("b", 3, KeyError()), work("c", 0, ValueError())])
    assert ended == ["c", "b", "a"]
