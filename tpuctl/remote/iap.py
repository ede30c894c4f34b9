"""SSH by way of Identity-Aware Proxy: machines without an open port, reached by who may.

The relay is one of Google's (its protocol is version 4): a WebSocket to it, opened with the
caller's token, is joined to a port of a machine in the caller's network, if Identity and Access
Management lets the caller through and the machine's firewall lets the relay in.

The facts are from the Google Cloud SDK 528, api_lib/compute/iap_tunnel_*.py; the names of the codes
that connections are closed with from GoogleCloudPlatform/iap-desktop, SshRelayCloseCode.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from tpuctl.errors import Denied, Scope, TpuctlError, Transient, Unreachable

if TYPE_CHECKING:
    from tpuctl.remote.relay_stream import Line, Tunnel

__all__ = ["RANGE", "Destination", "IapWay", "Opened", "Relay", "carry"]

# Who tunnels, as the relay asks of programs that are no browsers.
ORIGIN = "bot:iap-tunneler"
CONNECT_SECONDS, GOODBYE_SECONDS = 30.0, 2.0
RANGE = "35.235.240.0/20"  # where the relay comes from
CHUNK = 1 << 16
LONGEST_MESSAGE = 1 << 20


@dataclass(frozen=True)
class Relay:
    """Where the relay is, and the caller's token for it, asked at each connection."""

    url: str  # wss://…/v4
    token: Callable[[], Awaitable[str]]
    is_local: bool = False  # no proxy of the environment is asked for loopback


@dataclass(frozen=True)
class Destination:
    """A port of an instance. Workers of a TPU VM are instances too, by their host names."""

    project: str
    zone: str
    instance: str
    port: int = 22

    def __str__(self) -> str:
        return f"{self.instance} in {self.zone}"


@dataclass(frozen=True)
class IapWay:
    """How the SSH server of a machine is reached through IAP."""

    relay: Relay
    destination: Destination

    def __str__(self) -> str:
        return f"{self.destination}, by IAP"

    async def open(self) -> Opened:
        """A socket that leads to the machine's port. Raises TpuctlError."""
        near, far = socket.socketpair()
        try:
            reader, writer = await asyncio.open_connection(sock=far, limit=CHUNK)
            try:
                tunnel = await carry(self, reader, writer)
            except BaseException:
                writer.close()
                raise
        except BaseException:
            near.close()
            raise
        return Opened(near, tunnel, asyncio.ensure_future(tunnel.run()))


@dataclass
class Opened:
    """An open way: `socket` is for whoever speaks to the machine, who also closes it."""

    socket: socket.socket
    _tunnel: Tunnel
    _running: asyncio.Future[None]

    @property
    def failure(self) -> TpuctlError | None:
        """Why the way ended, where it did not just end."""
        return self._tunnel.failure

    @property
    def reconnections(self) -> int:
        return self._tunnel.reconnections

    async def close(self) -> None:
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)


async def carry(way: IapWay, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Tunnel:
    """A tunnel between these streams and the machine's port, open but not yet running."""
    from tpuctl.remote.relay_stream import Tunnel

    lines = _Lines(way)
    try:
        tunnel = Tunnel(lines, reader, writer)
        await tunnel.open()
    except BaseException:
        await lines.close()
        raise
    return tunnel


class _Lines:
    """Connections to Google's relay, for one tunnel."""

    def __init__(self, way: IapWay) -> None:
        from aiohttp import ClientSession, TCPConnector

        relay = way.relay
        self._relay = relay
        self._to = way.destination
        context = None if relay.is_local else _trusted()
        connector = TCPConnector(ssl=context) if context is not None else TCPConnector()
        self._session = ClientSession(connector=connector, trust_env=not relay.is_local)

    async def connect(self) -> Line:
        to = self._to
        return await self._open(
            "connect",
            project=to.project,
            zone=to.zone,
            instance=to.instance,
            interface="nic0",
            port=str(to.port),
        )

    async def reconnect(self, session: str, received: int) -> Line:
        return await self._open("reconnect", sid=session, ack=str(received), zone=self._to.zone)

    async def _open(self, verb: str, **query: str) -> Line:
        from aiohttp import (
            ClientError,
            ClientWSTimeout,
            ServerDisconnectedError,
            WSServerHandshakeError,
        )
        from yarl import URL

        from tpuctl.remote.relay_frames import SUBPROTOCOL

        text = f"{self._relay.url}/{verb}?{urlencode({**query, 'newWebsocket': 'True'})}"
        headers = {"Authorization": f"Bearer {await self._relay.token()}"}
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await self._session.ws_connect(
                    URL(text, encoded=True),
                    protocols=[SUBPROTOCOL],
                    origin=ORIGIN,
                    headers=headers,
                    max_msg_size=LONGEST_MESSAGE,
                    timeout=ClientWSTimeout(ws_close=GOODBYE_SECONDS),
                )
        except WSServerHandshakeError as error:
            raise self._not_let_in(error.status, error.message) from error
        except (ClientError, OSError, TimeoutError) as error:
            has_dropped = isinstance(error, ServerDisconnectedError) or (
                isinstance(error, OSError) and error.errno in (errno.ECONNRESET, errno.EPIPE)
            )
            raise (Transient if has_dropped else Unreachable)(
                "IAP cannot be reached",
                f"{self._relay.url}: {error or 'no answer in time'}",
                hint="It must be reached over HTTPS from this machine, by its proxy if it has one.",
            ) from error

    def _not_let_in(self, status: int, reason: str) -> TpuctlError:
        """The relay answered with a page instead of a WebSocket."""
        text = f"{self._to}: HTTP {status} {reason}".rstrip()
        if status >= 500 or status == 429:
            return Transient(
                "IAP does not answer",
                text,
                hint=(
                    "Google's tunnel failed for the moment: repeat the command in a "
                    "minute. Whether Google\n"
                    "knows of it:\n    https://status.cloud.google.com"
                ),
            )
        if status == 401:
            return _scoped(
                Denied(
                    "Credentials refused",
                    text,
                    hint="Log in anew with\n    gcloud auth application-default login",
                )
            )
        return self._denied(text)

    def _denied(self, text: str) -> Denied:
        return _scoped(
            Denied(
                "IAP lets you not through",
                text,
                hint="You need the role roles/iap.tunnelResourceAccessor; who may, grants it with\n"
                f"    gcloud projects add-iam-policy-binding {self._to.project} "
                "--member=user:YOU --role=roles/iap.tunnelResourceAccessor",
            )
        )

    def refusal(self, code: int | None, reason: str) -> TpuctlError:
        text = f"{self._to}: {code or 'the connection dropped'}"
        text += f" {reason}" if reason else ""
        if code == 4003:
            return Unreachable(
                "IAP cannot reach the machine",
                f"{text}: SSH does not answer there yet, or no firewall rule lets {RANGE} in",
                hint="Bring the stack's rule up to date with\n    tpuctl up",
            )
        if code == 4033:
            return self._denied(text)
        if code in (4047, 4051):
            return Unreachable(
                "IAP does not find the machine",
                f"{text}: it is stopped, or not there any more",
                hint="See what is there with\n    tpuctl status",
            )
        return Transient(
            "IAP ended the connection",
            text,
            hint="Repeat the command. Whether the machine still runs:\n    tpuctl status",
        )

    async def close(self) -> None:
        await self._session.close()


def _scoped(error: Denied) -> Denied:
    error.scope = Scope.PROJECT
    return error


def _trusted() -> Any:
    """Certificates that the system trusts, and those that Google's other clients do."""
    import ssl

    import certifi

    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    return context
