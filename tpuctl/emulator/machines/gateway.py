"""The way out of all machines: a CONNECT proxy on loopback that is Google to them.

Connections to Google's API hosts end here, under a certificate of the local cloud's own
authority, and go on in plain to the local API server: nothing reaches the real Google. All other
hosts are tunnelled as they are, through the computer's own proxy if it has one.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
import secrets
import ssl
import urllib.request
from collections.abc import Coroutine
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from tpuctl.emulator.machines.authority import Authority
from tpuctl.emulator.machines.framing import LONGEST_HEAD, RequestFraming

__all__ = ["Gateway"]

USER = "machine"
CONNECT_SECONDS = 30.0
HIGH_WATER = 1 << 20


def is_google(host: str) -> bool:
    return host == "googleapis.com" or host.endswith(".googleapis.com")


class Gateway:
    """Serves every machine of a local cloud; `url` holds the credentials that it asks for."""

    def __init__(self, authority: Authority, front: tuple[str, int]) -> None:
        self.authority = authority
        self._front = front
        self._password = secrets.token_urlsafe(24)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._ends: set[_End] = set()
        self.url = ""

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Asking(self), "127.0.0.1", 0, backlog=256)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://{USER}:{self._password}@127.0.0.1:{port}"

    async def close(self) -> None:
        """Stop, and end every connection that goes through."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for end in list(self._ends):
            end.abort()

    def allows(self, authorization: bytes) -> bool:
        expected = b"Basic " + base64.b64encode(f"{USER}:{self._password}".encode())
        return hmac.compare_digest(authorization, expected)

    def keep(self, end: _End) -> None:
        self._ends.add(end)

    def drop(self, end: _End) -> None:
        self._ends.discard(end)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def connect(self, asking: _Asking, host: str, port: int) -> None:
        """Join the asking client to where it wants to go, or tell it why not."""
        transport = asking.transport
        assert transport is not None
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                far = _End(self)
                if is_google(host):
                    await self._reach(far, *self._front)
                else:
                    await self._reach_outside(far, host, port)
        except (OSError, ValueError, TimeoutError) as problem:
            refuse(transport, "502 Bad Gateway", f"{host}:{port} cannot be reached: {problem}")
            return
        near = _RequestEnd(self) if is_google(host) else _End(self)
        near.other, far.other = far, near
        transport.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        loop = asyncio.get_running_loop()
        if is_google(host):
            context = self.authority.context_for(host)
            try:
                secured = await loop.start_tls(transport, near, context, server_side=True)
            except (OSError, ssl.SSLError):
                far.abort()
                return
            if secured is None:  # the client left meanwhile
                far.abort()
                return
            near.connection_made(secured)
        else:
            transport.set_protocol(near)
            near.connection_made(transport)
            transport.resume_reading()

    async def _reach(self, end: _End, host: str, port: int, *, tls: bool = False) -> None:
        context = ssl.create_default_context() if tls else None
        await asyncio.get_running_loop().create_connection(lambda: end, host, port, ssl=context)

    async def _reach_outside(self, end: _End, host: str, port: int) -> None:
        proxies = urllib.request.getproxies()
        proxy = proxies.get("https") or proxies.get("all")
        if not proxy or urllib.request.proxy_bypass(host):
            await self._reach(end, host, port)
            return
        parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"this computer's proxy is of a kind not supported: {parts.scheme}")
        asking = _AskingOn(self)
        default = 443 if parts.scheme == "https" else 80
        await self._reach(asking, parts.hostname, parts.port or default, tls=default == 443)
        head = f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n"
        if parts.username:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            head += f"Proxy-Authorization: Basic {base64.b64encode(pair.encode()).decode()}\r\n"
        try:
            transport, early = await asking.ask(head.encode() + b"\r\n")
        except BaseException:
            asking.abort()
            raise
        transport.set_protocol(end)
        self.drop(asking)
        end.connection_made(transport)
        end.early = early


def refuse(transport: asyncio.Transport, status: str, reason: str) -> None:
    body = reason.encode() + b"\n"
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
    if status.startswith("407"):
        head += 'Proxy-Authenticate: Basic realm="local cloud"\r\n'
    transport.write(head.encode() + b"Connection: close\r\n\r\n" + body)
    transport.close()


class _End(asyncio.Protocol):
    """One end of a joined pair: what arrives here leaves at the other, no faster than it can."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.transport: asyncio.Transport | None = None
        self.other: _End | None = None
        self.early = b""  # arrived before there was another end

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=HIGH_WATER)
        self.gateway.keep(self)
        if self.other is not None and self.other.early:
            self.transport.write(self.other.early)
            self.other.early = b""

    def data_received(self, data: bytes) -> None:
        if self.other is None or self.other.transport is None:
            self.early += data
        else:
            self.other.transport.write(data)

    def eof_received(self) -> bool:
        other = self.other.transport if self.other is not None else None
        if other is not None and other.can_write_eof():
            other.write_eof()
            return True
        return False

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            with contextlib.suppress(RuntimeError):
                self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            with contextlib.suppress(RuntimeError):
                self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gateway.drop(self)
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()

    def abort(self) -> None:
        self.gateway.drop(self)
        if self.transport is not None:
            self.transport.abort()


class _RequestEnd(_End):
    """A machine that thinks it speaks to Google."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(gateway)
        self._framing = RequestFraming()

    def data_received(self, data: bytes) -> None:
        try:
            parts = self._framing.feed(data)
        except ValueError:
            self.abort()
            return
        if parts and self.other is not None and self.other.transport is not None:
            self.other.transport.writelines(parts)

    def eof_received(self) -> bool:
        return False  # TLS has no half-closed connections


class _Asking(asyncio.Protocol):
    """A client until its CONNECT is read."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._head = b""
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        assert self.transport is not None
        self._head += data
        head, end, _ = self._head.partition(b"\r\n\r\n")
        if not end:
            if len(self._head) > LONGEST_HEAD:
                self.transport.abort()
            return
        self.transport.pause_reading()
        request, *lines = head.split(b"\r\n")
        named = [line.partition(b":") for line in lines]
        fields = {name.strip().lower(): value.strip() for name, _, value in named}
        method, _, target = request.decode("latin-1").partition(" ")
        place = target.partition(" ")[0]
        host, colon, port = place.rpartition(":")
        if not self._gateway.allows(fields.get(b"proxy-authorization", b"")):
            refuse(self.transport, "407 Proxy Authentication Required", "machines only")
        elif method != "CONNECT" or not colon or not port.isdigit():
            refuse(self.transport, "405 Method Not Allowed", "this proxy serves CONNECT only")
        else:
            plain = host.strip("[]").rstrip(".").lower()
            self._gateway.run(self._gateway.connect(self, plain, int(port)))


class _AskingOn(_End):
    """Our own CONNECT to the computer's proxy, until that has answered."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(gateway)
        self._answer: asyncio.Future[tuple[asyncio.Transport, bytes]]
        self._answer = asyncio.get_running_loop().create_future()
        self._head = b""

    async def ask(self, head: bytes) -> tuple[asyncio.Transport, bytes]:
        """The transport once it leads to the host, and what came after the answer."""
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
            self._answer.set_exception(OSError(f"this computer's proxy said {status}"))

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.gateway.drop(self)
        if not self._answer.done():
            self._answer.set_exception(OSError("this computer's proxy hung up"))
