"""Connections here joined to ports of a worker."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Protocol

import asyncssh

from tpuctl.remote.ssh import SshTransport

__all__ = ["join"]

CHUNK = 1 << 16


async def join(
    transport: SshTransport, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Carry what comes and goes between a connection here and one to a port of the worker's own
    loopback, until both sides are done or one breaks off; `writer` is closed then.

    Raises RemoteFailed when nothing answers there, Unreachable when the worker does not.
    """
    try:
        far_reader, far_writer = await transport.dial(port)
        try:
            # Where one side breaks off there is nobody to tell: the other's end is the news.
            with suppress(OSError, asyncssh.Error):
                await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
        finally:
            far_writer.close()
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


class _Reader(Protocol):
    async def read(self, n: int = -1) -> bytes: ...


class _Writer(Protocol):
    def write(self, data: bytes) -> None: ...

    def write_eof(self) -> None: ...

    async def drain(self) -> None: ...


async def _pump(source: _Reader, target: _Writer) -> None:
    """To the end, which is passed on."""
    while data := await source.read(CHUNK):
        target.write(data)
        await target.drain()
    target.write_eof()
