"""Forwards local connections to ports of a worker."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Protocol

import asyncssh

from tpuctl.remote.ssh import SshTransport

__all__ = ["forward"]

CHUNK_BYTES = 1 << 16


async def forward(
    transport: SshTransport, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Copy data between a local connection and a port on the worker's loopback, until both sides
    are done or one drops; then close `writer`.

    Raises RemoteFailed if nothing listens there, Unreachable if the worker does not respond.
    """
    try:
        far_reader, far_writer = await transport.dial(port)
        try:
            # If one side drops, the other sees its connection close.
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
    """Copy until end of file, and pass that on."""
    while data := await source.read(CHUNK_BYTES):
        target.write(data)
        await target.drain()
    target.write_eof()
