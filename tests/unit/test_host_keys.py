"""An impostor at a machine's address: it is refused before it learns anything."""

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
from tpuctl.remote.ssh import Address, SshTransport, openssh_command


@dataclass
class Impostor:
    """Lets everybody in, and keeps who tried to."""

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
    made = Impostor()
    connections: list[asyncssh.SSHServerConnection] = []

    class Welcome(asyncssh.SSHServer):
        def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
            connections.append(conn)

        def begin_auth(self, username: str) -> bool:
            made.tried.append(username)
            return False

    acceptor = await asyncssh.listen(
        "127.0.0.1",
        0,
        server_host_keys=[made.key],
        server_factory=Welcome,
        process_factory=lambda process: process.exit(0),
    )
    made.port = acceptor.get_port()
    yield made
    for one in connections:
        one.abort()
        await one.wait_closed()
    acceptor.close()
    await acceptor.wait_closed()


@pytest.fixture
def key(tmp_path: Path) -> KeyPair:
    return default_key(tmp_path / "ssh")


def expecting(impostor: Impostor) -> Address:
    """The address of a machine whose place the impostor has taken."""
    true = asyncssh.generate_private_key("ssh-ed25519").export_public_key("openssh").decode()
    return Address("127.0.0.1", impostor.port, "someone", (true.strip(),))


async def test_a_transport_tells_it_nothing(impostor: Impostor, key: KeyPair) -> None:
    address = expecting(impostor)
    with pytest.raises(Conflict, match="host key mismatch") as caught:
        await SshTransport(3, address, key.path).run(["true"])
    told = caught.value.diagnostics[0]
    assert f"worker 3 at 127.0.0.1:{impostor.port}" in told.detail
    assert "\n    tpuctl down\n    tpuctl up" in told.hint
    assert impostor.tried == []
    true = replace(address, host_keys=(impostor.line,))
    await SshTransport(3, true, key.path).run(["true"])
    assert impostor.tried == ["someone"], "the machine itself is let in"


async def test_a_key_kept_at_first_sight_is_demanded(impostor: Impostor, key: KeyPair) -> None:
    kept = key.path.parent / "my keys" / "machine"
    address = replace(expecting(impostor), pinned_keys_file=kept)
    with pytest.raises(Conflict) as caught:
        await SshTransport(0, address, key.path).run(["true"])
    assert f"\n    rm '{kept}'" in caught.value.diagnostics[0].hint
    assert impostor.tried == []


async def test_the_ssh_program_tells_it_nothing(
    impostor: Impostor, key: KeyPair, tmp_path: Path
) -> None:
    """Nor do keys that it trusts from elsewhere let the impostor in."""
    address, kept = expecting(impostor), tmp_path / "known_hosts"
    command = openssh_command(address, key.path, kept, "true")
    done = await to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 255
    assert "Host key verification failed" in done.stderr
    assert impostor.tried == []

    true = replace(address, host_keys=(impostor.line,))
    command = openssh_command(true, key.path, kept, "true")
    done = await to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, impostor.tried) == (0, ["someone"]), done.stderr


def options_of(command: list[str]) -> dict[str, str]:
    """As the program itself understands them."""
    command = [command[0], "-G", *command[1:]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return dict(line.partition(" ")[::2] for line in done.stdout.splitlines())


def test_the_ssh_program_trusts_no_other_keys(tmp_path: Path, key: KeyPair) -> None:
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


def test_neither_a_user_nor_a_command_is_an_option_of_the_ssh_program(
    tmp_path: Path, key: KeyPair
) -> None:
    """Whatever got past the checks of the stack file, or was typed after `ssh --`."""
    mark = tmp_path / "run-here"
    hostile = f"-oProxyCommand=touch {mark};"
    for user, line in ((hostile, ""), ("someone", hostile)):
        address = Address("127.0.0.1", 1, user, ("ssh-ed25519 AAAA",))
        command = openssh_command(address, key.path, tmp_path / "known", line)
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 255
        assert not mark.exists(), command
