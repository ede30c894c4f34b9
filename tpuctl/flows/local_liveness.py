"""Noticing that the local cloud, on which something waits, has ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from tpuctl.cloud.endpoints import Endpoint
from tpuctl.errors import Unreachable

__all__ = ["run_while_alive"]

T = TypeVar("T")
GONE_SECONDS = 60.0  # without a listener, after which a local cloud is not waited for
POLL_SECONDS = 2.0


async def run_while_alive(work: Coroutine[Any, Any, T], endpoint: Endpoint, repeat: str) -> T:
    """What `work` returns, as long as a local cloud runs.

    Once nothing has listened at its address for GONE_SECONDS, `work` is cancelled and Unreachable
    raised, which names the command line `repeat` to go on with. One that is started again before
    that is met by the retries of `work`. Google is not watched: its failures pass by themselves.
    """
    if not endpoint.is_local:
        return await work
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_until_gone(endpoint))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise Unreachable(
            "Local cloud is gone",
            f"nothing has listened at {endpoint.authority} for {GONE_SECONDS:.0f} s: its process "
            "has ended",
            hint=f"Start it, then go on:\n    tpuctl local up\n    {repeat}",
        )
    finally:
        for each in (task, watcher):
            each.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _until_gone(endpoint: Endpoint) -> None:
    """Return once connections have been refused for so long.

    A port that nothing listens at refuses at once; one that is slow to answer is no sign.
    """
    host, _, port = endpoint.authority.rpartition(":")
    refused_since: float | None = None
    while refused_since is None or time.monotonic() - refused_since < GONE_SECONDS:
        try:
            _, writer = await asyncio.open_connection(host, int(port))
        except ConnectionRefusedError:
            refused_since = refused_since or time.monotonic()
        except OSError:
            pass
        else:
            writer.close()
            refused_since = None
        await asyncio.sleep(min(POLL_SECONDS, GONE_SECONDS / 2))
