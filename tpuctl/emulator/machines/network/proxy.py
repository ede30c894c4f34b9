"""The two ends of a connection that the gateway relays."""

from __future__ import annotations

import asyncio
import contextlib
from typing import cast

from tpuctl.emulator.machines.network.framing import RequestFraming

HIGH_WATER = 1 << 20
PREFACE = b"PRI * HTTP/2.0"


class ConnectionSet:
    """All open connections, to close them with the gateway."""

    def __init__(self) -> None:
        self._ends: set[RelayEnd] = set()

    def add(self, end: RelayEnd) -> None:
        self._ends.add(end)

    def discard(self, end: RelayEnd) -> None:
        self._ends.discard(end)

    def abort(self) -> None:
        for end in list(self._ends):
            end.abort()


class RelayEnd(asyncio.Protocol):
    """One end of a relayed pair: forwards data to its peer, with backpressure."""

    def __init__(self, connections: ConnectionSet) -> None:
        self.connections = connections
        self.transport: asyncio.Transport | None = None
        self.peer: RelayEnd | None = None
        self.buffered = b""  # received before the peer was connected

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=HIGH_WATER)
        self.connections.add(self)
        if self.peer is not None and self.peer.buffered:
            self.transport.write(self.peer.buffered)
            self.peer.buffered = b""

    def data_received(self, data: bytes) -> None:
        if self.peer is None or self.peer.transport is None:
            self.buffered += data
        else:
            self.peer.transport.write(data)

    def eof_received(self) -> bool:
        other = self.peer.transport if self.peer is not None else None
        if other is not None and other.can_write_eof():
            other.write_eof()
            return True
        return False

    def pause_writing(self) -> None:
        if self.peer is not None and self.peer.transport is not None:
            with contextlib.suppress(RuntimeError):
                self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.peer is not None and self.peer.transport is not None:
            with contextlib.suppress(RuntimeError):
                self.peer.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.connections.discard(self)
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.close()

    def abort(self) -> None:
        self.connections.discard(self)
        if self.transport is not None:
            self.transport.abort()


class ClientEnd(RelayEnd):
    """A client of Google's hosts, over HTTP/1.1, or HTTP/2 for gRPC."""

    def __init__(self, connections: ConnectionSet) -> None:
        super().__init__(connections)
        self._framing = RequestFraming()
        self._first: bytes | None = b""  # until the protocol is detected; then None
        self._is_rpc = False

    def data_received(self, data: bytes) -> None:
        if self._first is not None:
            data = self._first + data
            if PREFACE.startswith(data[: len(PREFACE)]) and len(data) < len(PREFACE):
                self._first = data
                return
            self._first, self._is_rpc = None, data.startswith(PREFACE)
        if self._is_rpc:
            super().data_received(data)
            return
        try:
            parts = self._framing.feed(data)
        except ValueError:
            self.abort()
            return
        if parts and self.peer is not None and self.peer.transport is not None:
            self.peer.transport.writelines(parts)

    def eof_received(self) -> bool:
        return False  # TLS has no half-closed connections


class UpstreamConnect(RelayEnd):
    """The CONNECT request to the computer's proxy, until it is answered."""

    def __init__(self, connections: ConnectionSet) -> None:
        super().__init__(connections)
        self._answer: asyncio.Future[tuple[asyncio.Transport, bytes]]
        self._answer = asyncio.get_running_loop().create_future()
        self._head = b""

    async def open_tunnel(self, head: bytes) -> tuple[asyncio.Transport, bytes]:
        """The transport once the tunnel is open, and the data after the response headers."""
        assert self.transport is not None
        self.transport.write(head)
        return await self._answer

    def data_received(self, data: bytes) -> None:
        self._head += data
        head, end, after = self._head.partition(b"\r\n\r\n")
        if not end or self._answer.done() or self.transport is None:
            return
        status = head.partition(b"\r\n")[0].decode("latin-1")
        if status.split(" ")[1:2] == ["200"]:
            self._answer.set_result((self.transport, after))
        else:
            self._answer.set_exception(OSError(f"this computer's proxy responded with {status}"))

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.connections.discard(self)
        if not self._answer.done():
            self._answer.set_exception(OSError("this computer's proxy closed the connection"))
