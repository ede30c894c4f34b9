"""An impostor at a machine's address is rejected before it learns anything."""

from __future__ import annotations

import subprocess
from asyncio import to_thread
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import asyncssh
import pytest

from tpuctl.errors import Conflict
from tpuctl.remote.keys import KeyPair, default_key
from tpuctl.remote.openssh import openssh_command
from tpuctl.remote.ssh import Address, SshTransport


@dataclass
class Impostor:
    """Accepts every login, and records the users."""

    key: asyncssh.SSHKey = field(
        default_factory=lambda: asyncssh.generate_private_key("ssh-ed25519")
    )
    tried: list[str] = field(default_factory=list)
    port: int = 0

    @property
    def line(self) -> str:
        return self.key.export_public_key("openssh").decode().strip()


@pytest.fixture
async def impostor() -> AsyncIterator[Impostor]:
    server = Impostor()
    connections: list[asyncssh.SSHServerConnection] = []

    class Welcome(asyncssh.SSHServer):
        def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
            connections.append(conn)

        def begin_auth(self, username: str) -> bool:
            server.tried.append(username)
            return False

    acceptor = await asyncssh.listen(
        "127.0.0.1",
        0,
        server_host_keys=[server.key],
        server_factory=Welcome,
        process_factory=lambda process: process.exit(0),
    )
    server.port = acceptor.get_port()
    yield server
    for connection in connections:
        connection.abort()
        await connection.wait_closed()
    acceptor.close()
    await acceptor.wait_closed()


@pytest.fixture
def key(tmp_path: Path) -> KeyPair:
    return default_key(tmp_path / "ssh")


def expecting(impostor: Impostor) -> Address:
    """The address of a machine that the impostor replaced."""
    true = asyncssh.generate_private_key("ssh-ed25519").export_public_key("openssh").decode()
    return Address("127.0.0.1", impostor.port, "someone", (true.strip(),))


async def test_transport_rejects_impostor(impostor: Impostor, key: KeyPair) -> None:
    address = expecting(impostor)
    with pytest.raises(Conflict, match="host key mismatch") as caught:
        await SshTransport(3, address, key.path).run(["true"])
    diagnostic = caught.value.diagnostics[0]
    assert f"worker 3 at 127.0.0.1:{impostor.port}" in diagnostic.detail
    assert "\n    tpuctl down\n    tpuctl up" in diagnostic.hint
    assert impostor.tried == []
    true = replace(address, host_keys=(impostor.line,))
    await SshTransport(3, true, key.path).run(["true"])
    assert impostor.tried == ["someone"], "the real machine is accepted"


async def test_pinned_key_is_required(impostor: Impostor, key: KeyPair) -> None:
    known_hosts = key.path.parent / "my keys" / "machine"
    address = replace(expecting(impostor), pinned_keys_file=known_hosts)
    with pytest.raises(Conflict) as caught:
        await SshTransport(0, address, key.path).run(["true"])
    assert f"\n    rm '{known_hosts}'" in caught.value.diagnostics[0].hint
    assert impostor.tried == []


async def test_ssh_program_rejects_impostor(
    impostor: Impostor, key: KeyPair, tmp_path: Path
) -> None:
    """Keys from other known_hosts files are not accepted either."""
    address, known_hosts = expecting(impostor), tmp_path / "known_hosts"
    command = openssh_command(address, key.path, known_hosts, "true")
    done = await to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 255
    assert "Host key verification failed" in done.stderr
    assert impostor.tried == []

    true = replace(address, host_keys=(impostor.line,))
    command = openssh_command(true, key.path, known_hosts, "true")
    done = await to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, impostor.tried) == (0, ["someone"]), done.stderr


def options_of(command: list[str]) -> dict[str, str]:
    """The options as parsed by the program."""
    command = [command[0], "-G", *command[1:]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return dict(line.partition(" ")[::2] for line in done.stdout.splitlines())


def test_ssh_program_ignores_other_known_hosts(tmp_path: Path, key: KeyPair) -> None:
    address = Address("worker", 22, "someone", ("ssh-ed25519 AAAA",))
    command = openssh_command(address, key.path, tmp_path / "Application Support" / "50%known")
    understood = options_of(command)
    assert understood["stricthostkeychecking"] in ("true", "yes")
    assert understood["userknownhostsfile"] == str(tmp_path / "Application Support" / "50%known")
    assert understood["globalknownhostsfile"] == "/dev/null"
    assert understood["updatehostkeys"] in ("false", "no")
    assert understood["verifyhostkeydns"] in ("false", "no")
    assert understood["forwardagent"] == "no"
    assert understood["forwardx11"] == "no"


def test_user_and_command_are_not_parsed_as_ssh_options(tmp_path: Path, key: KeyPair) -> None:
    """Even if an option passed the checks of the stack file, or was typed after `ssh --`."""
    mark = tmp_path / "run-here"
    hostile = f"-oProxyCommand=touch {mark};"
    for user, line in ((hostile, ""), ("someone", hostile)):
        address = Address("127.0.0.1", 1, user, ("ssh-ed25519 AAAA",))
        command = openssh_command(address, key.path, tmp_path / "known", line)
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 255
        assert not mark.exists(), command
