"""An SSH server on loopback with separate files, open ports, and connection drops on demand."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncssh

from tpuctl.remote.keys import default_key
from tpuctl.remote.ssh import Address, SshTransport


class FileServer:
    """`home` is the user's root folder. `on_write` is called before each write, and may raise."""

    def __init__(self, home: Path, key: asyncssh.SSHAuthorizedKeys) -> None:
        self.home = home
        self._accepted = key
        self.host_key = asyncssh.generate_private_key("ssh-ed25519")
        self.connections: list[asyncssh.SSHServerConnection] = []
        self.logins = 0
        self.on_write: Callable[[int, bytes], bytes] = lambda offset, data: data
        self.on_read: Callable[[int], None] = lambda offset: None

    async def start(self) -> None:
        self._acceptor = await asyncssh.listen(
            "127.0.0.1",
            0,
            server_host_keys=[self.host_key],
            server_factory=lambda: _Welcome(self),
            sftp_factory=lambda channel: _Files(self, channel),
            authorized_client_keys=self._accepted,
            encoding=None,
        )

    def drop(self) -> None:
        """Drop every connection, like a network failure."""
        for connection in self.connections:
            connection.abort()
        self.connections.clear()

    async def close(self) -> None:
        self.drop()
        self._acceptor.close()
        await self._acceptor.wait_closed()

    @property
    def address(self) -> Address:
        public = self.host_key.export_public_key("openssh").decode().strip()
        return Address("127.0.0.1", self._acceptor.get_port(), "someone", (public,))


class _Welcome(asyncssh.SSHServer):
    def __init__(self, server: FileServer) -> None:
        self._server = server

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._server.connections.append(conn)
        self._server.logins += 1

    def connection_requested(self, *destination: Any) -> bool:
        return True


class _Files(asyncssh.SFTPServer):
    def __init__(self, server: FileServer, channel: Any) -> None:
        super().__init__(channel)
        self._faults = server
        self._home = os.fsencode(server.home)

    def map_path(self, path: bytes) -> bytes:
        return os.path.join(self._home, path)  # noqa: PTH118 - bytes

    def write(self, file_obj: Any, offset: int, data: bytes) -> Any:
        return super().write(file_obj, offset, self._faults.on_write(offset, data))

    def read(self, file_obj: Any, offset: int, size: int) -> Any:
        self._faults.on_read(offset)
        return super().read(file_obj, offset, size)


@asynccontextmanager
async def serving_files(
    folder: Path, worker: int = 0
) -> AsyncIterator[tuple[FileServer, SshTransport]]:
    """A server whose home is `folder/home-N`, and a transport to it."""
    key = default_key(folder / "keys")
    home = folder / f"home-{worker}"
    home.mkdir()
    server = FileServer(home, asyncssh.import_authorized_keys(key.public_line))
    await server.start()
    transport = SshTransport(worker, server.address, key.path)
    try:
        yield server, transport
    finally:
        await transport.close()
        await server.close()
