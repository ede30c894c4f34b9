"""Joins local streams to ports: of a worker's loopback, or of its address."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Protocol

import asyncssh

from tpuctl.errors import Unreachable
from tpuctl.remote.ssh import CONNECT_SECONDS, SshTransport

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


async def connect_streams(
    host: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Copy data between a pair of streams and a port until that side is done.

    Raises Unreachable if it does not respond.
    """
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            far_reader, far_writer = await asyncio.open_connection(host, port)
    except OSError as error:
        raise Unreachable(
            "Cannot reach worker",
            f"{host}:{port}: {error.strerror or 'timed out'}",
            hint="See whether the node is READY with\n    tpuctl status\n"
            "A firewall rule of its network must allow port 22 from this machine's address:\n"
            "    tpuctl up",
        ) from error
    sending = asyncio.ensure_future(_pump(reader, far_writer))
    try:
        with suppress(OSError):
            while data := await far_reader.read(CHUNK_BYTES):
                writer.write(data)
                await writer.drain()
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        far_writer.close()


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
