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
from tpuctl.emulator.machines.peers import is_same_user
from tpuctl.emulator.machines.port_forward import PortForward

STRANGER = 65534  # `nobody`
TOKEN = "/computeMetadata/v1/instance/service-accounts/default/token"
ASK = """
import encodings.idna, os, socket, sys
place, path, user = sys.argv[1:]
host, _, port = place.partition(":")
if user:
    os.setuid(int(user))
with socket.create_connection((host, int(port))) as made, made.makefile("rb") as answer:
    head = f"GET {path} HTTP/1.1", f"Host: {place}", "Metadata-Flavor: Google", "Connection: close"
    made.sendall(("\\r\\n".join(head) + "\\r\\n\\r\\n").encode())
    try:
        sys.stdout.buffer.write(answer.read())
    except ConnectionResetError:
        print("reset")
"""

pytestmark = pytest.mark.skipif(
    not Path("/proc/net/tcp").exists(), reason="a connection's user is known only on Linux"
)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may act as another user")


async def request_as(place: str, user: int | None) -> str:
    """Run a program as that user; return its output."""
    command = [sys.executable, "-I", "-S", "-c", ASK, place, TOKEN, str(user or "")]
    done = await asyncio.to_thread(succeed, command, timeout=60)
    return done.stdout


@needs_root
async def test_other_users_get_no_token(lab: Any) -> None:
    spec = await lab.boot()
    place = (await lab.run("echo $GCE_METADATA_HOST")).out.strip()
    answer = await request_as(place, STRANGER)
    assert answer.startswith("HTTP/1.1 403 ")
    assert "Other users of this computer are not allowed." in answer
    assert spec.access_token not in answer
    assert spec.access_token in await request_as(place, None)


@needs_root
async def test_other_users_cannot_use_forwarded_port() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"here")
        writer.close()

    inside = await asyncio.start_server(serve, "127.0.0.1", 0)

    async def reach() -> socket.socket:
        connection = socket.socket()
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, inside.sockets[0].getsockname())
        return connection

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    door = PortForward(reach)
    await door.listen("127.0.0.1", port)
    try:
        assert await request_as(f"127.0.0.1:{port}", None) == "here"
        assert await request_as(f"127.0.0.1:{port}", STRANGER) == "reset\n"
    finally:
        await door.close()
        inside.close()


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_connection_user_is_detected(
    family: socket.AddressFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An IPv6 socket with an IPv4 connection, as in Java programs."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(family) as client:
        port = server.getsockname()[1]
        host = "127.0.0.1" if family == socket.AF_INET else "::ffff:127.0.0.1"
        client.connect((host, port))
        accepted, far = server.accept()
        with accepted:
            assert is_same_user(accepted.getsockname(), far)
            assert not is_same_user(accepted.getsockname(), (far[0], 1))
            user_id = os.geteuid()
            monkeypatch.setattr(os, "geteuid", lambda: user_id + 1)
            assert not is_same_user(accepted.getsockname(), far)
