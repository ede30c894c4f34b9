"""Polling in tests: one loop, in a blocking and an async form."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")

# Only failing tests wait this long: a busy machine may take many times longer than an idle one.
SECONDS = 120.0
PAUSE = 0.02


def until(
    probe: Callable[[], T], description: str | Callable[[], str], seconds: float = SECONDS
) -> T:
    """Poll until the probe returns a true value, and return it; a timeout shows `description`."""
    deadline = time.monotonic() + seconds
    while not (answer := probe()):
        assert time.monotonic() < deadline, _failure(description, seconds)
        time.sleep(PAUSE)
    return answer


async def async_until(
    probe: Callable[[], Awaitable[T] | T], description: str, seconds: float = SECONDS
) -> Any:
    """The same without blocking the event loop; the probe may return an awaitable."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            while True:
                answer = probe()
                if inspect.isawaitable(answer):
                    answer = await answer
                if answer:
                    return answer
                await asyncio.sleep(PAUSE)
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise AssertionError(_failure(description, seconds)) from error


def _failure(description: str | Callable[[], str], seconds: float) -> str:
    text = description if isinstance(description, str) else description()
    return f"timed out after {seconds:g} seconds: {text}"
