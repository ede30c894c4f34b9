"""The proxy of all machines and shells: a CONNECT proxy on loopback that impersonates Google.

TLS connections to Google's API hosts, and to the IAP relay, are terminated here with a certificate
of the local cloud's authority, and forwarded in plain text to the local API server: nothing reaches
the real Google. All other hosts are tunneled, through the computer's proxy if it has one; for a
shell, through the proxy it had before; for a job with a proxy of its own, through that. A machine
reaches what its network allows; the rest is refused at once with the reason, where Google would
drop packets until the client's timeout.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import errno
import hmac
import ipaddress
import socket
import ssl
import urllib.request
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import SplitResult, unquote, urlsplit

from tpuctl.emulator.machines.interface import ALLOWED, Verdict
from tpuctl.emulator.machines.network.firewall import Firewall
from tpuctl.emulator.machines.network.framing import MAX_HEAD_BYTES
from tpuctl.emulator.machines.network.proxy import (
    ClientEnd,
    ConnectionSet,
    RelayEnd,
    UpstreamConnect,
)
from tpuctl.local_cloud.gateway_address import (
    MACHINE,
    GatewayAddress,
    machine_user,
    read_upstream,
)

if TYPE_CHECKING:
    from tpuctl.emulator.machines.network.certificate_authority import Authority

CONNECT_SECONDS = 30.0


RELAY = "tunnel.cloudproxy.app"  # of Identity-Aware Proxy
ACCOUNTS = "accounts.google.com"  # issues tokens to older clients


def is_google(host: str) -> bool:
    return host in ("googleapis.com", ACCOUNTS, RELAY) or host.endswith(".googleapis.com")


def is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


@dataclass(frozen=True)
class Client:
    """Who uses the gateway: its proxy for other hosts, or "auto", and the machine if it is one."""

    proxy: str | None
    machine: str | None = None


class Gateway:
    """The proxy of every machine of a local cloud; `url` includes its credentials."""

    def __init__(
        self,
        make_authority: Callable[[], Authority],
        api_address: tuple[str, int],
        home: Path | None = None,
        firewall: Firewall | None = None,
    ) -> None:
        """With `home`, its port and password are stored there for shells.

        The authority is made, in a thread, when it is first needed.
        """
        self._firewall = firewall
        self._machines: dict[str, str] = {}  # by user
        self._make_authority = make_authority
        self._authority: asyncio.Future[Authority] | None = None
        self.connections = ConnectionSet()
        self._api_address = api_address
        self._home = home
        self._address = (
            GatewayAddress.read(home) if home is not None else None
        ) or GatewayAddress.new()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return self._address.url(MACHINE)

    async def authority(self) -> Authority:
        if self._authority is None:
            self._authority = asyncio.ensure_future(asyncio.to_thread(self._make_authority))
        return await asyncio.shield(self._authority)

    def machine_url(self, name: str) -> str:
        """The URL for one machine."""
        user = machine_user(name)
        self._machines[user] = name
        return self._address.url(user)

    async def open(self) -> None:
        """Listen on the last port if it is still free, otherwise on another one."""
        try:
            server = await self._listen(self._address.port)
        except OSError as problem:
            if problem.errno not in (errno.EADDRINUSE, errno.EACCES) or not self._address.port:
                raise
            server = await self._listen(0)
        self._server = server
        self._address = GatewayAddress(server.sockets[0].getsockname()[1], self._address.password)
        if self._home is not None:
            self._address.write(self._home)

    async def _listen(self, port: int) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        return await loop.create_server(
            lambda: _ConnectRequest(self), "127.0.0.1", port, backlog=256
        )

    async def close(self) -> None:
        """Stop listening, and close all connections."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.connections.abort()

    def client_of(self, authorization: bytes) -> Client:
        """Raises KeyError for invalid credentials."""
        kind, _, encoded = authorization.partition(b" ")
        try:
            pair = base64.b64decode(encoded, validate=True) if kind.lower() == b"basic" else b""
        except ValueError:
            pair = b""
        user, _, password = pair.partition(b":")
        if not hmac.compare_digest(password, self._address.password.encode()):
            raise KeyError(user)
        name = user.decode("latin-1")
        if name == MACHINE:
            return Client("auto")
        machine, _, proxy = name.partition(".")
        if machine in self._machines:
            return Client(next_proxy(proxy) or "auto", self._machines[machine])
        if self._home is None:
            raise KeyError(name)
        return Client(read_upstream(self._home, name))

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def connect(self, request: _ConnectRequest, host: str, port: int, sender: Client) -> None:
        """Connect the client to its target, or respond with an error."""
        transport = request.transport
        assert transport is not None
        verdict = await self._verdict(sender, host, port)
        if not verdict.is_allowed:
            reject(transport, f"504 {verdict.reason}", f"cannot reach {host}:{port}")
            return
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                remote = RelayEnd(self.connections)
                if is_google(host):
                    await self._open_connection(remote, *self._api_address)
                else:
                    await self._open_outside(remote, host, port, sender)
        except (OSError, ValueError, TimeoutError) as problem:
            reject(transport, "502 Bad Gateway", f"cannot reach {host}:{port}: {problem}")
            return
        client = ClientEnd(self.connections) if is_google(host) else RelayEnd(self.connections)
        client.peer, remote.peer = remote, client
        transport.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        loop = asyncio.get_running_loop()
        if is_google(host):
            context = (await self.authority()).context_for(host)
            try:
                secured = await loop.start_tls(transport, client, context, server_side=True)
            except (OSError, ssl.SSLError):
                remote.abort()
                return
            if secured is None:  # the client disconnected
                remote.abort()
                return
            client.connection_made(secured)
        else:
            transport.set_protocol(client)
            client.connection_made(transport)
            transport.resume_reading()

    async def _verdict(self, sender: Client, host: str, port: int) -> Verdict:
        if self._firewall is None or sender.machine is None:
            return ALLOWED
        if is_google(host):
            return self._firewall.to_google(sender.machine, host)
        if sender.proxy != "auto":  # what it connects to is its proxy
            proxy = split_proxy(sender.proxy or "")
            host, port = proxy.hostname or "", port_of(proxy)
        needs_address = self._firewall.needs_address(sender.machine)
        address = await _resolve(host) if needs_address or is_loopback(host) else None
        return self._firewall.to_address(sender.machine, address, port)

    async def _open_connection(
        self,
        end: RelayEnd,
        host: str,
        port: int,
        *,
        tls: bool = False,
        source: tuple[str, int] | None = None,
    ) -> None:
        context = ssl.create_default_context() if tls else None
        await asyncio.get_running_loop().create_connection(
            lambda: end, host, port, ssl=context, local_addr=source
        )

    async def _open_outside(self, end: RelayEnd, host: str, port: int, sender: Client) -> None:
        proxy = sender.proxy
        if proxy == "auto":
            proxies = urllib.request.getproxies()
            proxy = proxies.get("https") or proxies.get("all")
            if urllib.request.proxy_bypass(host):
                proxy = None
        if not proxy or is_loopback(host):
            source = None
            if self._firewall is not None and sender.machine is not None and is_loopback(host):
                source = self._firewall.source_address(sender.machine)
            await self._open_connection(end, host, port, source=source)
            return
        parts = split_proxy(proxy)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"unsupported scheme of this computer's proxy: {parts.scheme}")
        if parts.port == self._address.port and is_loopback(parts.hostname):
            raise ValueError("this computer's proxy is the local cloud itself")
        upstream = UpstreamConnect(self.connections)
        is_tls = parts.scheme == "https"
        await self._open_connection(upstream, parts.hostname, port_of(parts), tls=is_tls)
        head = f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n"
        if parts.username:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            head += f"Proxy-Authorization: Basic {base64.b64encode(pair.encode()).decode()}\r\n"
        try:
            transport, early = await upstream.open_tunnel(head.encode() + b"\r\n")
        except BaseException:
            upstream.abort()
            raise
        transport.set_protocol(end)
        self.connections.discard(upstream)
        end.connection_made(transport)
        end.buffered = early


def next_proxy(text: str) -> str:
    """The proxy of a machine's user, as of `with_next_proxy`; "" for none. Raises KeyError."""
    try:
        proxy = bytes.fromhex(text).decode()
        port_of(split_proxy(proxy))
    except ValueError:
        raise KeyError(text) from None
    return proxy


def split_proxy(proxy: str) -> SplitResult:
    return urlsplit(proxy if "://" in proxy else f"http://{proxy}")


def port_of(proxy: SplitResult) -> int:
    return proxy.port or (443 if proxy.scheme == "https" else 80)


async def _resolve(host: str) -> str | None:
    """An IPv4 address; None if there is none, or only this computer's proxy knows it."""
    with contextlib.suppress(OSError, UnicodeError):
        results = await asyncio.get_running_loop().getaddrinfo(host, None, family=socket.AF_INET)
        return str(results[0][4][0])
    return None


def reject(transport: asyncio.Transport, status: str, reason: str) -> None:
    body = reason.encode() + b"\n"
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
    if status.startswith("407"):
        head += 'Proxy-Authenticate: Basic realm="local cloud"\r\n'
    transport.write(head.encode() + b"Connection: close\r\n\r\n" + body)
    transport.close()


class _ConnectRequest(asyncio.Protocol):
    """A client connection until its CONNECT request is complete."""

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
            if len(self._head) > MAX_HEAD_BYTES:
                self.transport.abort()
            return
        self.transport.pause_reading()
        request, *lines = head.split(b"\r\n")
        header_parts = [line.partition(b":") for line in lines]
        fields = {name.strip().lower(): value.strip() for name, _, value in header_parts}
        method, _, target = request.decode("latin-1").partition(" ")
        place = target.partition(" ")[0]
        host, colon, port = place.rpartition(":")
        try:
            sender = self._gateway.client_of(fields.get(b"proxy-authorization", b""))
        except KeyError:
            reject(self.transport, "407 Proxy Authentication Required", "invalid credentials")
            return
        if method != "CONNECT" or not colon or not port.isdigit():
            reject(self.transport, "405 Method Not Allowed", "this proxy supports only CONNECT")
        else:
            plain = host.strip("[]").rstrip(".").lower()
            self._gateway.run(self._gateway.connect(self, plain, int(port), sender))
