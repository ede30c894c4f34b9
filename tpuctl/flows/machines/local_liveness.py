"""Detect that the local cloud has stopped while waiting for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from tpuctl.cloud.endpoints import Endpoint
from tpuctl.errors import Unreachable

T = TypeVar("T")
GONE_SECONDS = 60.0  # without a listener before the local cloud counts as stopped
POLL_SECONDS = 2.0


async def run_while_alive(work: Coroutine[Any, Any, T], endpoint: Endpoint, repeat: str) -> T:
    """Run `work`, and cancel it if the local cloud stops.

    Once nothing has listened at its address for GONE_SECONDS, raises Unreachable with the command
    line `repeat` to continue with. If it is restarted before that, the retries of `work` succeed.
    Google is not watched: its outages are temporary.
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
            "Local cloud stopped",
            f"nothing has listened on {endpoint.authority} for {GONE_SECONDS:.0f} s",
            hint=f"Start it, then continue:\n    tpuctl local up\n    {repeat}",
        )
    finally:
        for running in (task, watcher):
            running.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _until_gone(endpoint: Endpoint) -> None:
    """Return once connections have been refused for GONE_SECONDS.

    A port without a listener refuses immediately; slow answers do not count.
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
