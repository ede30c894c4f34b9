"""SSH through Identity-Aware Proxy (IAP), for machines without an open port.

Google's relay (protocol version 4) joins a WebSocket, opened with the caller's token, to a port of
a machine, if IAM allows the caller and the machine's firewall allows the relay.

Sources: Google Cloud SDK 528, api_lib/compute/iap_tunnel_*.py; close codes from
GoogleCloudPlatform/iap-desktop, SshRelayCloseCode.
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
    from tpuctl.remote.relay_stream import Connection, Tunnel

# The relay requires this origin from programs that are not browsers.
ORIGIN = "bot:iap-tunneler"
CONNECT_SECONDS, CLOSE_SECONDS = 30.0, 2.0
RELAY_RANGE = "35.235.240.0/20"  # the relay's addresses
CHUNK_BYTES = 1 << 16
MAX_MESSAGE_BYTES = 1 << 20


@dataclass(frozen=True)
class Relay:
    """The relay's URL, and a function that returns the caller's token for each connection."""

    url: str  # wss://…/v4
    token: Callable[[], Awaitable[str]]
    is_local: bool = False  # ignores proxy settings of the environment


@dataclass(frozen=True)
class Destination:
    """A port of an instance. Workers of a TPU VM are instances too, named by their host names."""

    project: str
    zone: str
    instance: str
    port: int = 22

    def __str__(self) -> str:
        return f"{self.instance} in {self.zone}"


@dataclass(frozen=True)
class IapRoute:
    """The route to a machine's SSH server through IAP."""

    relay: Relay
    destination: Destination

    def __str__(self) -> str:
        return f"{self.destination}, through IAP"

    async def open(self) -> OpenRoute:
        """Open a socket that leads to the machine's port. Raises TpuctlError."""
        near, far = socket.socketpair()
        try:
            reader, writer = await asyncio.open_connection(sock=far, limit=CHUNK_BYTES)
            try:
                tunnel = await open_tunnel(self, reader, writer)
            except BaseException:
                writer.close()
                raise
        except BaseException:
            near.close()
            raise
        return OpenRoute(near, tunnel, asyncio.ensure_future(tunnel.run()))


@dataclass
class OpenRoute:
    """An open route; the user of `socket` also closes it."""

    socket: socket.socket
    _tunnel: Tunnel
    _running: asyncio.Future[None]

    @property
    def failure(self) -> TpuctlError | None:
        """Why the route failed, if it did."""
        return self._tunnel.failure

    @property
    def reconnections(self) -> int:
        return self._tunnel.reconnections

    async def close(self) -> None:
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)


async def open_tunnel(
    route: IapRoute, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> Tunnel:
    """Open a tunnel between these streams and the machine's port; the caller runs it."""
    from tpuctl.remote.relay_stream import Tunnel

    connector = _Connector(route)
    try:
        tunnel = Tunnel(connector, reader, writer)
        await tunnel.open()
    except BaseException:
        await connector.close()
        raise
    return tunnel


class _Connector:
    """Connections to Google's relay, for one tunnel."""

    def __init__(self, route: IapRoute) -> None:
        from aiohttp import ClientSession, TCPConnector

        relay = route.relay
        self._relay = relay
        self._destination = route.destination
        context = None if relay.is_local else _ssl_context()
        connector = TCPConnector(ssl=context) if context is not None else TCPConnector()
        self._session = ClientSession(connector=connector, trust_env=not relay.is_local)

    async def connect(self) -> Connection:
        destination = self._destination
        return await self._open(
            "connect",
            project=destination.project,
            zone=destination.zone,
            instance=destination.instance,
            interface="nic0",
            port=str(destination.port),
        )

    async def reconnect(self, session: str, received: int) -> Connection:
        return await self._open(
            "reconnect", sid=session, ack=str(received), zone=self._destination.zone
        )

    async def _open(self, verb: str, **query: str) -> Connection:
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
                    max_msg_size=MAX_MESSAGE_BYTES,
                    timeout=ClientWSTimeout(ws_close=CLOSE_SECONDS),
                )
        except WSServerHandshakeError as error:
            raise self._handshake_error(error.status, error.message) from error
        except (ClientError, OSError, TimeoutError) as error:
            has_dropped = isinstance(error, ServerDisconnectedError) or (
                isinstance(error, OSError) and error.errno in (errno.ECONNRESET, errno.EPIPE)
            )
            raise (Transient if has_dropped else Unreachable)(
                "Cannot reach IAP",
                f"{self._relay.url}: {error or 'no answer in time'}",
                hint="Allow HTTPS to it from this machine, through its proxy if it uses one.",
            ) from error

    def _handshake_error(self, status: int, reason: str) -> TpuctlError:
        """The error for an HTTP response instead of a WebSocket."""
        text = f"{self._destination}: HTTP {status} {reason}".rstrip()
        if status >= 500 or status == 429:
            return Transient(
                "IAP does not respond",
                text,
                hint=(
                    "Google's tunnel failed temporarily. Repeat the command in a minute.\n"
                    "For known outages, see:\n    https://status.cloud.google.com"
                ),
            )
        if status == 401:
            return _scoped(
                Denied(
                    "Credentials rejected",
                    text,
                    hint="Sign in again with\n    gcloud auth application-default login",
                )
            )
        return self._denied(text)

    def _denied(self, text: str) -> Denied:
        return _scoped(
            Denied(
                "Access denied by IAP",
                text,
                hint="You need the role roles/iap.tunnelResourceAccessor. A project administrator "
                "can grant it:\n"
                f"    gcloud projects add-iam-policy-binding {self._destination.project} "
                "--member=user:YOU --role=roles/iap.tunnelResourceAccessor",
            )
        )

    def close_error(self, code: int | None, reason: str) -> TpuctlError:
        text = f"{self._destination}: {code or 'the connection dropped'}"
        text += f" {reason}" if reason else ""
        if code == 4003:
            return Unreachable(
                "IAP cannot reach the machine",
                f"{text}: SSH does not respond there yet, or no firewall rule allows {RELAY_RANGE}",
                hint="Update the stack's firewall rule with\n    tpuctl up",
            )
        if code == 4033:
            return self._denied(text)
        if code in (4047, 4051):
            return Unreachable(
                "IAP cannot find the machine",
                f"{text}: it is stopped or no longer exists",
                hint="See what exists with\n    tpuctl status",
            )
        return Transient(
            "IAP closed the connection",
            text,
            hint="Repeat the command. To see whether the machine is still running:\n    tpuctl "
            "status",
        )

    async def close(self) -> None:
        await self._session.close()


def _scoped(error: Denied) -> Denied:
    error.scope = Scope.PROJECT
    return error


def _ssl_context() -> Any:
    """Trusts the system's certificates, and certifi's like Google's other clients."""
    import ssl

    import certifi

    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    return context
