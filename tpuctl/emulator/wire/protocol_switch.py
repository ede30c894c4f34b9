"""Serves HTTP/2 (gRPC) and HTTP/1.1 on one port, detected by a connection's first bytes."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import weakref
from collections.abc import Awaitable, Callable
from typing import cast

from aiohttp import web

_PREFACE = b"PRI * HTTP/2.0"
_MAX_HEAD_BYTES = 64 * 1024
_TLS_HANDSHAKE = b"\x16"
_NO_TLS = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\nThis port does not use TLS.\n"


class ProtocolSwitch:
    """Listens on loopback and passes each connection to the server of its protocol."""

    def __init__(self, http: web.Server, open_rpc: Callable[[], Awaitable[str]]) -> None:
        """`open_rpc` starts the gRPC server if needed and returns its socket's path."""
        self._http = http
        self._open_rpc = open_rpc
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.BaseTransport] = set()
        self.accepted = weakref.WeakSet[asyncio.BaseTransport]()

    async def listen(self, port: int) -> int:
        """Listen on 127.0.0.1; port 0 picks a free one. Returns the port; OSError if in use."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _ProtocolDetector(self), "127.0.0.1", port, backlog=1024
        )
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._http.pre_shutdown()
        await self._http.shutdown(timeout=2.0)
        # Including those whose protocol is not detected yet.
        for transport in [*self._open, *self.accepted]:
            transport.close()

    def make_http_protocol(self) -> asyncio.Protocol:
        return cast(asyncio.Protocol, self._http())

    async def splice(self, near: asyncio.Transport, first: bytes) -> None:
        """Relay a connection to the gRPC server."""
        try:
            path = await self._open_rpc()
            loop = asyncio.get_running_loop()
            self._open.add(near)
            far, _ = await loop.create_unix_connection(
                lambda: _Pipe(near, self._open.discard), path
            )
        except OSError:
            near.close()
            return
        far.write(first)
        near.set_protocol(_Pipe(far, self._open.discard, near))
        near.resume_reading()


class _ProtocolDetector(asyncio.Protocol):
    """Buffers the first bytes until the protocol is detected, then hands over."""

    def __init__(self, switch: ProtocolSwitch) -> None:
        self._switch = switch
        self._transport: asyncio.Transport | None = None
        self._head = b""
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        peer = transport.get_extra_info("peername")
        if not peer or not ipaddress.ip_address(peer[0]).is_loopback:
            transport.close()
            return
        self._transport = cast(asyncio.Transport, transport)
        self._switch.accepted.add(transport)

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            return
        self._head += data
        if self._head.startswith(_PREFACE):
            self._transport.pause_reading()
            self._task = asyncio.ensure_future(self._switch.splice(self._transport, self._head))
            return
        if _PREFACE.startswith(self._head[: len(_PREFACE)]):
            return  # undecided
        if self._head[:1] == _TLS_HANDSHAKE:  # its client would wait for a TLS answer
            self._transport.write(_NO_TLS)
            self._transport.close()
            return
        if b"\r\n\r\n" not in self._head and len(self._head) < _MAX_HEAD_BYTES:
            return
        protocol = self._switch.make_http_protocol()
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        protocol.data_received(_drop_content_length(self._head))


class _Pipe(asyncio.Protocol):
    """Forwards data to the other transport; a full write buffer pauses reading."""

    def __init__(
        self,
        other: asyncio.Transport,
        on_end: Callable[[asyncio.BaseTransport], None],
        transport: asyncio.Transport | None = None,
    ) -> None:
        self._other = other
        self._on_end = on_end
        self._own = transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._own = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._other.write(data)

    def pause_writing(self) -> None:
        if not self._other.is_closing():
            self._other.pause_reading()

    def resume_writing(self) -> None:
        if not self._other.is_closing():
            self._other.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        if self._own is not None:
            self._on_end(self._own)
        if not self._other.is_closing():
            self._other.close()


def _drop_content_length(first: bytes) -> bytes:
    """Drop Content-Length from a request that is also chunked.

    TensorFlow's uploads have both, each on a separate connection. By RFC 9112 section 6.3 chunked
    takes precedence, but the HTTP parser behind this port rejects the pair.
    """
    head, separator, rest = first.partition(b"\r\n\r\n")
    if not re.search(rb"\r\ntransfer-encoding:[^\r\n]*chunked", head, re.IGNORECASE):
        return first
    return re.sub(rb"\r\ncontent-length:[^\r\n]*", b"", head, flags=re.IGNORECASE) + (
        separator + rest
    )
