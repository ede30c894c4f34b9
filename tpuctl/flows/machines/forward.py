"""Forward ports of this machine's loopback interface to ports of a worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from tpuctl.errors import Diagnostic, RemoteFailed, TpuctlError
from tpuctl.local_ports import FIRST_UNPRIVILEGED_PORT, LOOPBACK, listen
from tpuctl.model.events import Emit, PortForwarded, WarningIssued
from tpuctl.remote.ports import forward
from tpuctl.remote.ssh import SshTransport

MAX_CONNECTIONS = 256  # concurrent, per port; also ends the loop of a port forwarded to itself


@dataclass(frozen=True)
class PortMapping:
    """A worker's port and the local one; None means the same number or the next free port."""

    remote: int
    local: int | None = None

    def __str__(self) -> str:
        return str(self.remote) if self.local is None else f"{self.local}:{self.remote}"


@asynccontextmanager
async def forward_ports(
    mappings: Sequence[PortMapping],
    transport: SshTransport,
    emit: Emit,
    *,
    shares_loopback: bool = False,
) -> AsyncIterator[None]:
    """Forward local ports to the worker's loopback interface while in the block.

    With `shares_loopback` (a machine of the local cloud) no port is forwarded to itself. Raises
    Unreachable if the worker cannot be reached, Usage if a port is in use. After a dropped
    connection the next client reconnects to the worker. A failing port is reported once, until it
    works again.
    """
    await transport.connect()
    servers: list[asyncio.Server] = []
    forwarders: list[_PortForwarder] = []
    try:
        for mapping in mappings:
            forwarder = _PortForwarder(mapping, transport, emit)
            server = await _listen(mapping, forwarder, shares_loopback)
            servers.append(server)
            forwarders.append(forwarder)
            port = server.sockets[0].getsockname()[1]
            url = f"http://{LOOPBACK}:{port}"
            emit(PortForwarded(transport.worker, transport.name, mapping.remote, port, url))
        yield
    finally:
        for server in servers:
            server.close()
        for forwarder in forwarders:
            await forwarder.close()


async def _listen(
    mapping: PortMapping, forwarder: _PortForwarder, shares_loopback: bool
) -> asyncio.Server:
    port = mapping.remote
    listener = listen(
        mapping.local,
        first=(port if port >= FIRST_UNPRIVILEGED_PORT else port + 8000) + shares_loopback,
        where=str(mapping),
        hint="Pass another local port, or none to use the next free one:\n"
        f"    tpuctl forward {port}",
    )
    return await asyncio.start_server(forwarder.accept, sock=listener)


class _PortForwarder:
    """Serves the connections to one port."""

    def __init__(self, mapping: PortMapping, transport: SshTransport, emit: Emit) -> None:
        self._mapping = mapping
        self._port = mapping.remote
        self._transport = transport
        self._emit = emit
        self._last_warning: Diagnostic | None = None
        self._open: set[asyncio.Task[None]] = set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= MAX_CONNECTIONS:
            port = f"port {self._port} of worker {self._transport.name}"
            detail = f"{MAX_CONNECTIONS} are open to {port}"
            self._warn(
                Diagnostic(
                    "Too many connections",
                    detail,
                    hint="Close some, or forward another port:\n    tpuctl forward PORT",
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
            await forward(self._transport, self._port, reader, writer)
        except TpuctlError as error:
            diagnostic = error.diagnostics[0]
            if isinstance(error, RemoteFailed) and self._mapping.local is not None:
                order = f"In {self._mapping}, the worker's port is the second: {self._port}."
                diagnostic = replace(diagnostic, hint=f"{order}\n{diagnostic.hint}")
            self._warn(diagnostic)
        else:
            self._last_warning = None

    def _warn(self, diagnostic: Diagnostic) -> None:
        if diagnostic != self._last_warning:
            self._last_warning = diagnostic
            self._emit(WarningIssued(diagnostic))
