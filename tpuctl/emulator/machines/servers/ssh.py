"""SSH on a machine: authentication and port forwarding."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import re
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias, cast

import asyncssh
from asyncssh.constants import OPEN_ADMINISTRATIVELY_PROHIBITED, OPEN_CONNECT_FAILED
from asyncssh.forward import SSHForwarder

from tpuctl.emulator.machines.interface import Endpoint, MachineError
from tpuctl.emulator.machines.servers.session import Session

USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.@-]{0,63}")
# Ciphers with hardware support, so that SSH does not slow down jobs.
CIPHERS = ["aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes256-ctr"]
LOOPBACK = {"localhost", "127.0.0.1", "::1"}

Connection: TypeAlias = asyncssh.SSHServerConnection


def host_key(file: Path) -> asyncssh.SSHKey:
    """The machine's host key, generated on its first boot."""
    if not file.exists():
        key = asyncssh.generate_private_key("ssh-ed25519")
        fresh = file.with_name(file.name + ".new")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(key.export_private_key("openssh"))
        fresh.replace(file)
    return asyncssh.read_private_key(file)


def allowed_keys(
    metadata: Mapping[str, str], project_metadata: Mapping[str, str]
) -> dict[str, list[asyncssh.SSHKey]]:
    """Keys by user, from lines `user:key` of `ssh-keys`, optionally with an expiry as of gcloud.

    Invalid lines are ignored. The project's keys apply unless the machine's metadata blocks them:
    cloud.google.com/compute/docs/connect/restrict-ssh-keys.
    """
    lines = metadata.get("ssh-keys", "").splitlines()
    if metadata.get("block-project-ssh-keys", "").upper() not in ("TRUE", "1"):
        lines += project_metadata.get("ssh-keys", "").splitlines()
    allowed: dict[str, list[asyncssh.SSHKey]] = {}
    for line in lines:
        user, colon, text = line.strip().partition(":")
        if not colon or not USER.fullmatch(user) or _has_expired(text):
            continue
        with contextlib.suppress(asyncssh.KeyImportError, ValueError):
            allowed.setdefault(user, []).append(asyncssh.import_public_key(text.strip()))
    return allowed


def _has_expired(text: str) -> bool:
    _, marker, details = text.partition(" google-ssh ")
    if not marker:
        return False
    try:
        until = datetime.fromisoformat(json.loads(details)["expireOn"])
    except (ValueError, KeyError, TypeError):
        return True
    return (until if until.tzinfo else until.replace(tzinfo=UTC)) < datetime.now(UTC)


class SshServer:
    """The SSH server of one machine."""

    def __init__(
        self,
        endpoint: Endpoint,
        key: asyncssh.SSHKey,
        open_session: Callable[[str], Session],
        reachable: Collection[str],
        admits: Callable[[str, asyncssh.SSHKey], bool],
        refuses_key: Callable[[], bool],
        accepts: Callable[[], bool] = lambda: True,
        allows_forwarding: Callable[[str, int], bool] = lambda host, port: True,
        source: tuple[str, int] | None = None,
    ) -> None:
        """`admits(user, key)` decides about logins. `refuses_key` is called once per connection
        with an allowed key.

        Connections that `accepts` does not allow are closed.
        `allows_forwarding(address, port)` decides about connections to other machines; these come
        from the address `source`.
        """
        self.accepts = accepts
        self.allows_forwarding = allows_forwarding
        self.source = source
        self._endpoint = endpoint
        self._key = key
        self._open_session = open_session
        self._reachable = set(reachable)
        self.admits = admits
        self.refuses_key = refuses_key
        self._listener: asyncssh.SSHAcceptor | None = None
        self.connections: set[Connection] = set()

    async def open(self) -> None:
        """Listen; raises MachineError if the port is in use."""
        address, port = self._endpoint.address, self._endpoint.ssh_port
        try:
            self._listener = await asyncssh.listen(
                address,
                port,
                server_factory=lambda: _ConnectionHandler(self),
                server_host_keys=[self._key],
                encoding=None,
                line_editor=False,
                encryption_algs=CIPHERS,
                compression_algs=["none"],
                gss_host=None,
                config=None,
                agent_forwarding=False,
                reuse_address=True,
                backlog=256,
            )
        except OSError as problem:
            raise MachineError(
                f"SSH cannot listen on {address} port {port}: {problem.strerror or problem}"
            ) from problem

    async def close(self) -> None:
        """Stop listening and drop every connection, like a machine that is powered off."""
        if self._listener is not None:
            self._listener.close()
        # Before waiting: since Python 3.12 a listener is closed only when its connections are.
        for connection in list(self.connections):
            connection.abort()
        if self._listener is not None:
            await self._listener.wait_closed()
            self._listener = None

    @property
    def sockets(self) -> Sequence[socket.socket]:
        return () if self._listener is None else self._listener.sockets

    def start_session(self, user: str) -> Session:
        return self._open_session(user)

    def destinations(self, host: str) -> tuple[str, ...]:
        """The allowed targets of a forwarded connection, in order: this machine or its siblings."""
        if host.lower() in LOOPBACK:
            # What listens on "localhost" of a machine shares 127.0.0.1 with the host.
            return (self._endpoint.address, "127.0.0.1")
        return (host,) if host in self._reachable else ()


class _ConnectionHandler(asyncssh.SSHServer):
    """Handles authentication, sessions and forwarding of one connection."""

    def __init__(self, server: SshServer) -> None:
        self._server = server
        self._connection: Connection | None = None
        self._is_refused: bool | None = None

    def connection_made(self, conn: Connection) -> None:
        self._connection = conn
        self._server.connections.add(conn)
        if not self._server.accepts():
            conn.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._connection is not None:
            self._server.connections.discard(self._connection)

    def begin_auth(self, username: str) -> bool:
        return True

    def password_auth_supported(self) -> bool:
        return False

    def kbdint_auth_supported(self) -> bool:
        return False

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        if not self._server.admits(username, key):
            return False
        if self._is_refused is None:  # clients query a key before they sign with it
            self._is_refused = self._server.refuses_key()
        return not self._is_refused

    def session_requested(self) -> Session:
        assert self._connection is not None
        return self._server.start_session(self._connection.get_extra_info("username"))

    async def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> asyncssh.SSHTCPSession[bytes]:
        assert self._connection is not None
        refusal = asyncssh.ChannelOpenError(
            OPEN_ADMINISTRATIVELY_PROHIBITED,
            f"machines of the local cloud can forward only to their own node, not to {dest_host}",
        )
        for host in self._server.destinations(dest_host):
            try:
                forwarder = await self._forward(host, dest_port)
                return cast("asyncssh.SSHTCPSession[bytes]", forwarder)
            except OSError as problem:
                refusal = asyncssh.ChannelOpenError(OPEN_CONNECT_FAILED, str(problem))
        raise refusal

    async def _forward(self, host: str, port: int) -> SSHForwarder:
        """As asyncssh's `forward_connection`, but from the machine's own address."""
        if not self._server.allows_forwarding(host, port):
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        source = None if host in LOOPBACK else self._server.source
        loop = asyncio.get_running_loop()
        _, peer = await loop.create_connection(SSHForwarder, host, port, local_addr=source)
        return SSHForwarder(peer)
