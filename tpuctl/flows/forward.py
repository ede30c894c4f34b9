"""Ports of a worker, reached at ports of this machine's loopback for as long as it is wanted."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tpuctl.errors import Diagnostic, TpuctlError, Usage
from tpuctl.model.events import Emit, PortForwarded, Warned
from tpuctl.remote.ports import join
from tpuctl.remote.ssh import SshTransport

__all__ = ["WantedPort", "forwarding"]

LOOPBACK = "127.0.0.1"
MOST = 256  # connections at a time to one port; a port that leads to itself ends there
NEXT = 20  # ports tried after the one that is taken
RESERVED = 1024  # below, a port may be for administrators alone


@dataclass(frozen=True)
class WantedPort:
    """A port of the worker, and the one here: None for the same, or the next that is free."""

    remote: int
    local: int | None = None


@asynccontextmanager
async def forwarding(
    wanted: Sequence[WantedPort],
    transport: SshTransport,
    emit: Emit,
    *,
    is_own_loopback: bool = False,
) -> AsyncIterator[None]:
    """Connections to the ports here lead to the worker's own loopback, which may be this
    machine's own as well: a port is then not chosen to lead to itself.

    Raises Unreachable when the worker does not answer at first, Usage when a port is taken.
    After a drop, the next connection to a port here makes a new one to the worker. What cannot
    be reached there is told once, until it could be.
    """
    await transport.connect()
    servers: list[asyncio.Server] = []
    lines: list[_Lines] = []
    try:
        for one in wanted:
            taker = _Lines(one.remote, transport, emit)
            server = await _listen(one, taker, is_own_loopback)
            servers.append(server)
            lines.append(taker)
            port = server.sockets[0].getsockname()[1]
            emit(PortForwarded(transport.worker, one.remote, port, f"http://{LOOPBACK}:{port}"))
        yield
    finally:
        for server in servers:
            server.close()
        for taker in lines:
            await taker.close()


async def _listen(wanted: WantedPort, lines: _Lines, is_own_loopback: bool) -> asyncio.Server:
    for port in _choices(wanted, is_own_loopback):
        try:
            return await asyncio.start_server(lines.take, LOOPBACK, port)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            if wanted.local is not None:
                why = "is in use" if error.errno == errno.EADDRINUSE else "is not yours to use"
                raise Usage(
                    "Port cannot be had",
                    f"port {port} of this machine {why}",
                    hint="Give another one after the colon, or none for the next free one:\n"
                    f"    tpuctl forward {wanted.remote}",
                    where=f"{wanted.remote}:{wanted.local}",
                ) from error
    raise AssertionError("port 0 is always free")


def _choices(wanted: WantedPort, is_own_loopback: bool) -> Iterator[int]:
    if wanted.local is not None:
        yield wanted.local
        return
    first = wanted.remote if wanted.remote >= RESERVED else wanted.remote + 8000
    first += is_own_loopback
    yield from range(first, min(first + NEXT, 1 << 16))
    yield 0


class _Lines:
    """The connections to one port."""

    def __init__(self, port: int, transport: SshTransport, emit: Emit) -> None:
        self._port = port
        self._transport = transport
        self._emit = emit
        self._told: Diagnostic | None = None
        self._open: set[asyncio.Task[None]] = set()

    def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= MOST:
            detail = f"{MOST} are open to port {self._port} of worker {self._transport.worker}"
            self._tell(
                Diagnostic(
                    "Too many connections",
                    detail,
                    hint="Close some, or forward another port beside it:\n    tpuctl forward PORT",
                )
            )
            writer.close()
            return
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def close(self) -> None:
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await join(self._transport, self._port, reader, writer)
        except TpuctlError as error:
            self._tell(error.diagnostics[0])
        else:
            self._told = None

    def _tell(self, one: Diagnostic) -> None:
        if one != self._told:
            self._told = one
            self._emit(Warned(one))
