"""A TCP relay on loopback that cuts connections after a given number of bytes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from tpuctl.remote.ssh import SshTransport


@dataclass(frozen=True)
class Cut:
    """Cuts one connection after a number of bytes in one direction."""

    direction: Literal["request", "answer"]
    after: int


class Relay:
    """Cuts the first connections as listed in `cuts`, one each, and passes all later ones.

    `passed` counts the bytes in each direction, over all connections; `reads` has the counts after
    each read.
    """

    def __init__(self, host: str, port: int, cuts: Iterable[Cut] = ()) -> None:
        self.target = (host, port)
        self.cuts = list(cuts)
        self.connections = 0
        self.passed = {"request": 0, "answer": 0}
        self.reads: dict[str, list[int]] = {"request": [], "answer": []}

    async def start(self) -> int:
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        port: int = self.server.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        self.server.close()
        await self.server.wait_closed()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        cut = self.cuts.pop(0) if self.cuts else None
        far_reader, far_writer = await asyncio.open_connection(*self.target)
        tasks = [
            asyncio.ensure_future(self.copy("request", reader, far_writer, cut)),
            asyncio.ensure_future(self.copy("answer", far_reader, writer, cut)),
        ]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for end in (writer, far_writer):
            end.transport.abort()

    async def copy(
        self,
        direction: Literal["request", "answer"],
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        cut: Cut | None,
    ) -> None:
        left = cut.after if cut is not None and cut.direction == direction else None
        with contextlib.suppress(OSError):
            while left != 0 and (data := await source.read(1 << 14)):
                if left is not None:
                    data = data[:left]
                    left -= len(data)
                target.write(data)
                self.passed[direction] += len(data)
                self.reads[direction].append(self.passed[direction])
                await target.drain()


@asynccontextmanager
async def cut_transport(
    direct: SshTransport, key: Path, cuts: Iterable[Cut]
) -> AsyncIterator[tuple[SshTransport, Relay]]:
    """A transport to the same worker through a relay that cuts its connections."""
    relay = Relay(direct.address.host, direct.address.port, cuts)
    address = replace(direct.address, host="127.0.0.1", port=await relay.start())
    transport = SshTransport(direct.worker, address, key)
    try:
        yield transport, relay
    finally:
        await transport.close()
        await relay.close()
