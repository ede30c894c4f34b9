"""Other users of the computer, who can connect to loopback addresses."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import succeed
from tpuctl.emulator.machines.network import peers
from tpuctl.emulator.machines.network.peers import is_same_user
from tpuctl.emulator.machines.network.port_forward import PortForward

OTHER_USER = 65534  # an unprivileged user
TOKEN = "/computeMetadata/v1/instance/service-accounts/default/token"
REQUEST = """
import encodings.idna, os, socket, sys
address, path, user = sys.argv[1:]
host, _, port = address.partition(":")
if user:
    os.setuid(int(user))
with socket.create_connection((host, int(port))) as connection, connection.makefile("rb") as reader:
    head = f"GET {path} HTTP/1.1\\r\\nHost: {address}\\r\\nMetadata-Flavor: Google\\r\\n"
    connection.sendall((head + "Connection: close\\r\\n\\r\\n").encode())
    try:
        sys.stdout.buffer.write(reader.read())
    except ConnectionResetError:
        print("reset")
"""

pytestmark = pytest.mark.skipif(
    not Path("/proc/net/tcp").exists(), reason="only Linux reports the user of a connection"
)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may act as another user")


async def request_as(address: str, user: int | None) -> str:
    """The response to a request of that user."""
    command = [sys.executable, "-I", "-S", "-c", REQUEST, address, TOKEN, str(user or "")]
    result = await asyncio.to_thread(succeed, command, timeout=60)
    return result.stdout


@needs_root
async def test_other_users_get_no_token(lab: Any) -> None:
    spec = await lab.boot()
    address = (await lab.run("echo $GCE_METADATA_HOST")).out.strip()
    response = await request_as(address, OTHER_USER)
    assert response.startswith("HTTP/1.1 403 ")
    assert "Other users of this computer are not allowed." in response
    assert spec.access_token not in response
    assert spec.access_token in await request_as(address, None)


@needs_root
async def test_other_users_cannot_use_forwarded_port() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"here")
        writer.close()

    inside = await asyncio.start_server(serve, "127.0.0.1", 0)

    async def connect() -> socket.socket:
        connection = socket.socket()
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, inside.sockets[0].getsockname())
        return connection

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    port_forward = PortForward(connect)
    await port_forward.listen("127.0.0.1", port)
    try:
        assert await request_as(f"127.0.0.1:{port}", None) == "here"
        # A reset if the request arrived before the connection was closed.
        assert await request_as(f"127.0.0.1:{port}", OTHER_USER) in ("", "reset\n")
    finally:
        await port_forward.close()
        inside.close()


@pytest.mark.parametrize("has_query", [True, False])
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_connection_user_is_detected(
    family: socket.AddressFamily, has_query: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An IPv6 socket with an IPv4 connection, as in Java programs.

    The kernel's table, which takes long to read, is read only if the connection is not found.
    """
    if not has_query:
        monkeypatch.setattr(peers, "NETLINK_SOCK_DIAG", -1)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(family) as client:
        port = server.getsockname()[1]
        host = "127.0.0.1" if family == socket.AF_INET else "::ffff:127.0.0.1"
        client.connect((host, port))
        accepted, far = server.accept()
        with accepted:
            near = accepted.getsockname()
            assert not is_same_user(near, (far[0], 1))
            assert not is_same_user(near, near)  # a socket listens there
            if has_query:
                monkeypatch.setattr(peers, "TABLES", ("/proc/version", "/proc/version"))
            assert is_same_user(near, far)
            user_id = os.geteuid()
            monkeypatch.setattr(os, "geteuid", lambda: user_id + 1)
            assert not is_same_user(near, far)
