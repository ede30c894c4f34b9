"""The TCP relay of Identity-Aware Proxy: WebSockets that tunnel to the machines' SSH servers.

A tunnel is opened if IAM grants the caller `iap.tunnelInstances.accessViaIAP`, the machine is
running, and its network's firewall allows the relay's addresses. The close codes are Google's
(cloud.google.com/iap/docs/faq, "error codes"): 4033 without the permission, 4047 for an instance
that is stopped or does not exist, 4003 if nothing answers or a firewall denies access.

Port 22 is the machine's SSH server, whatever its port is here; no other port is reachable.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from typing import Any

from aiohttp import web

from tpuctl import catalog
from tpuctl.emulator.state.errors import invalid
from tpuctl.emulator.wire.http_request import Request
from tpuctl.emulator.wire.iap.session import Close, Session
from tpuctl.emulator.wire.network_policy import NetworkPolicy
from tpuctl.emulator.wire.registry import Registry

ROOT = "/v4/"
METHODS = frozenset({"iap.tunnels.connect", "iap.tunnels.reconnect"})
PERMISSION = "iap.tunnelInstances.accessViaIAP"
SUBPROTOCOL = "relay.tunnel.cloudproxy.app"
SSH = 22
CONNECT_SECONDS = 10.0
# How long a session waits for its client to reconnect: a guess.
_SESSION_SECONDS = 300.0
_MAX_MESSAGE_BYTES = 1 << 20


class Tunnels:
    """All tunnels of one local cloud."""

    def __init__(self, registry: Registry, policy: NetworkPolicy) -> None:
        self._registry = registry
        self._policy = policy
        self._sessions: dict[str, Session] = {}

    async def answer(self, request: Request) -> web.StreamResponse:
        """Answer a request below ROOT. Raises ApiError if it is not for a tunnel."""
        verb = request.path.removeprefix(ROOT)
        method = f"iap.tunnels.{verb}"
        websocket = web.WebSocketResponse(
            protocols=(SUBPROTOCOL,), max_msg_size=_MAX_MESSAGE_BYTES, compress=False, timeout=2.0
        )
        if method not in METHODS or not websocket.can_prepare(request.raw):
            raise invalid("A tunnel requires a WebSocket to /v4/connect or /v4/reconnect.")
        opened: Session | Close
        acknowledged: int | None = None
        async with self._registry.traffic.track(method, request.caller) as call:
            call.project = request.param("project")
            await call.arrive(lambda: _request_attributes(request))
            try:
                if verb == "connect":
                    opened = await self._connect(request)
                else:
                    opened, acknowledged = self._find(request)
            except Close as refused:
                opened, call.status = refused, f"CLOSED_{refused.code}"
        try:
            await websocket.prepare(request.raw)
            if isinstance(opened, Close):
                raise opened
            await opened.serve(websocket, acknowledged, _make_cut(request))
        except Close as close:
            with contextlib.suppress(ConnectionError):
                await websocket.close(code=close.code, message=close.reason.encode())
        finally:
            if isinstance(opened, Session):
                await self._detach(opened)
        return websocket

    async def close(self) -> None:
        """Close all tunnels."""
        for session in list(self._sessions.values()):
            if session.websocket is not None:
                with contextlib.suppress(ConnectionError):
                    await session.websocket.close(code=1001)
            await session.end()
        self._sessions.clear()

    async def _detach(self, session: Session) -> None:
        """Handle the end of a session's connection."""
        if session.is_over:
            self._sessions.pop(session.sid, None)
            await session.end()
        else:
            self._registry.in_background(self._expire(session))

    async def _expire(self, session: Session) -> None:
        await asyncio.sleep(_SESSION_SECONDS)
        if session.websocket is None and self._sessions.pop(session.sid, None) is not None:
            await session.end()

    async def _connect(self, request: Request) -> Session:
        project = self._registry.projects.find(request.param("project"))
        name = f"projects/{project['id'] if project else request.param('project')}"
        instance = f"zones/{request.param('zone')}/instances/{request.param('instance')}"
        facts = {"resource.name": f"{name}/iap_tunnel/{instance}"}
        if not self._registry.authority.allows(request.email, PERMISSION, name, facts):
            raise Close(Close.NOT_AUTHORIZED, "not authorized")
        target = self._target(name, request.param("zone"), request.param("instance"))
        if target is None:
            raise Close(Close.LOOKUP_FAILED, "Failed to lookup instance")
        port = request.param("port")
        if port != str(SSH) or not self._policy.from_relay(target, SSH).is_allowed:
            raise Close(Close.BACKEND, "failed to connect to backend")
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                streams = await self._registry.host.connect_relay(target)
        except (OSError, TimeoutError):
            raise Close(Close.BACKEND, "failed to connect to backend") from None
        session = Session(secrets.token_urlsafe(24), request.email, *streams)
        self._sessions[session.sid] = session
        return session

    def _find(self, request: Request) -> tuple[Session, int]:
        session = self._sessions.get(request.param("sid"))
        if session is None or session.email != request.email:
            raise Close(Close.SID_UNKNOWN, "unknown sid")
        if session.websocket is not None:
            raise Close(Close.SID_IN_USE, "sid in use")
        if not request.param("ack").isdigit():
            raise Close(Close.BAD_ACK, "bad ack")
        return session, int(request.param("ack"))

    def _target(self, project: str, zone: str, host: str) -> str | None:
        """The full name of the running machine with that name, if any."""
        for service in self._registry.machine_services():
            target = service.tunnel_target(project, zone, host)
            if target is not None:
                return target
        return None


def _request_attributes(request: Request) -> dict[str, Any]:
    zone = request.param("zone")
    return {
        "project": request.param("project"),
        "zone": zone,
        "region": catalog.region_of(zone) if zone else "",
        "name": [request.param("instance")] if request.param("instance") else [],
    }


def _make_cut(request: Request) -> Callable[[str, int], bool]:
    """A function that applies a fault's cut: an abort, or the close code of an expired token."""

    def cut(part: Any, passed: int) -> bool:
        limit, code = request.exchange.limit(part, None), request.exchange.code(part)
        if limit is None or passed < limit or not request.exchange.trigger(part):
            return False
        if code == "UNAUTHENTICATED":
            raise Close(Close.REAUTHENTICATE, "reauthentication required")
        if request.raw.transport is not None:
            request.raw.transport.abort()
        return True

    return cut
