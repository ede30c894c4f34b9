"""An HTTP server on a worker, read through a forwarded port."""

from __future__ import annotations

import asyncio
import contextlib
import urllib.request
from collections.abc import AsyncIterator, Sequence
from functools import partial

from tests.support.polling import until
from tests.support.ports import free_port
from tpuctl.api import Tpuctl
from tpuctl.model.events import Event, PortForwarded

GREETING = b"from the worker\n"
_SERVE_FOLDER = "cd tmp-served && python3 -m http.server --bind 127.0.0.1 {port} >/dev/null 2>&1"


@contextlib.asynccontextmanager
async def serve_greeting(stack: Tpuctl) -> AsyncIterator[int]:
    """Serve it on worker 0 while in the block; yields the port."""
    port = free_port()
    async with stack.connections() as transports:
        make = "mkdir -p tmp-served && echo from the worker > tmp-served/greeting"
        (await transports[0].run(["sh", "-c", make])).check("making a file")
        async with transports[0].stream(["sh", "-c", _SERVE_FOLDER.format(port=port)]):
            yield port


async def read_greeting(events: Sequence[Event]) -> bytes:
    """What the forwarded port of these events serves."""
    (port,) = [event for event in events if isinstance(event, PortForwarded)]
    url = f"http://127.0.0.1:{port.local_port}/greeting"
    return await asyncio.to_thread(until, partial(_read, url), f"{url} answering")


def _read(url: str) -> bytes | None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    # Until the server listens.
    with contextlib.suppress(OSError), opener.open(url, timeout=60) as answer:
        body: bytes = answer.read()
        return body
    return None
