"""SSH to a real server on loopback: commands, files, keys, drops, denied logins."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.support.polling import async_until
from tests.support.required_programs import skip_without
from tpuctl.errors import Conflict, RemoteFailed, Transient, Unreachable, Usage
from tpuctl.remote.keys import KeyPair, config_home, default_key, load_key
from tpuctl.remote.openssh import openssh_command
from tpuctl.remote.ssh import Address, SshPool, SshTransport, fetch_host_key


class Server:
    """An SSH server that runs commands in a separate home folder."""

    def __init__(self, home: Path, accepted: str) -> None:
        self.home = home
        self.accepted = asyncssh.import_authorized_keys(accepted)
        self.host_key = asyncssh.generate_private_key("ssh-ed25519")
        self.connections: list[asyncssh.SSHServerConnection] = []
        self.children: list[asyncio.subprocess.Process] = []
        self.refused = 0  # connections to drop before login

    async def start(self) -> None:
        self.acceptor = await asyncssh.listen(
            "127.0.0.1",
            0,
            server_host_keys=[self.host_key],
            server_factory=lambda: Welcome(self),
            process_factory=self.handle,
            authorized_client_keys=self.accepted,
            encoding=None,
        )

    async def handle(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        child = await asyncio.create_subprocess_shell(
            process.command or "",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=self.home,
            env={"HOME": str(self.home), "PATH": os.environ["PATH"]},
            start_new_session=True,
        )
        self.children.append(child)
        assert child.stdin and child.stdout and child.stderr
        feeding = asyncio.ensure_future(pump(process.stdin, child.stdin))
        try:
            pouring = (pump(child.stdout, process.stdout), pump(child.stderr, process.stderr))
            await asyncio.gather(*pouring)
            code = await child.wait()
        except (OSError, asyncssh.Error):
            child.kill()
            await child.wait()
            return
        finally:
            feeding.cancel()
            await asyncio.wait([feeding])
        if code < 0:
            process.exit_with_signal({9: "KILL", 15: "TERM"}[-code])
        else:
            process.exit(code)

    def drop(self) -> None:
        """Drop every connection, like a network failure."""
        for connection in self.connections:
            connection.abort()
        self.connections.clear()

    async def close(self) -> None:
        self.drop()
        self.acceptor.close()
        await self.acceptor.wait_closed()
        for child in self.children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            await child.wait()

    @property
    def address(self) -> Address:
        public = self.host_key.export_public_key("openssh").decode().strip()
        return Address("127.0.0.1", self.acceptor.get_port(), "someone", (public,))


async def pump(source: Any, target: Any) -> None:
    """Copy until EOF, and pass EOF on to a child's input."""
    with contextlib.suppress(OSError, asyncssh.Error):
        while data := await source.read(1 << 16):
            target.write(data)
            await target.drain()
    if isinstance(target, asyncio.StreamWriter):
        target.close()


class Welcome(asyncssh.SSHServer):
    def __init__(self, server: Server) -> None:
        self.server = server

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self.server.connections.append(conn)
        if self.server.refused:
            self.server.refused -= 1
            conn.abort()


@pytest.fixture
def key(tmp_path: Path) -> KeyPair:
    return default_key(tmp_path / "keys")


@pytest.fixture
async def server(tmp_path: Path, key: KeyPair) -> AsyncIterator[Server]:
    home = tmp_path / "home"
    home.mkdir()
    server = Server(home, key.public_line)
    await server.start()
    yield server
    await server.close()


@pytest.fixture
async def transport(server: Server, key: KeyPair) -> AsyncIterator[SshTransport]:
    transport = SshTransport(3, server.address, key.path)
    yield transport
    await transport.close()


@pytest.mark.parametrize(
    ("command", "data", "expected"),
    [
        (["sh", "-c", "echo out; echo err >&2; exit 7"], b"", (7, b"out\n", b"err\n")),
        (["printf", "%s|", "a b", "$HOME", "", "'", "*"], b"", (0, b"a b|$HOME||'|*|")),
        (["sh", "-c", "kill -9 $$"], b"", (137,)),  # 128 and the signal's number
        (["cat"], bytes(range(256)) * 5000, (0, bytes(range(256)) * 5000)),
    ],
)
async def test_run_returns_output_and_exit_code(
    transport: SshTransport, command: list[str], data: bytes, expected: tuple[int | bytes, ...]
) -> None:
    done = await transport.run(command, input=data)
    assert (done.exit_code, done.stdout, done.stderr)[: len(expected)] == expected


async def test_check_reports_failed_command(transport: SshTransport) -> None:
    done = await transport.run(["sh", "-c", "echo no room >&2; exit 1"])
    with pytest.raises(RemoteFailed, match="copying: exit code 1: no room"):
        done.check("copying")


async def test_commands_share_one_connection(server: Server, transport: SshTransport) -> None:
    await asyncio.gather(*(transport.run(["true"]) for _ in range(8)))
    assert len(server.connections) == 1


async def test_stream_reads_input_after_its_first_answer(transport: SshTransport) -> None:
    script = "head -c 3; echo; read more; echo more $more"
    stream = await transport.open_stream(["sh", "-c", script], input=b"abc")
    assert await stream.read_line() == b"abc\n"
    stream.write(b"later\n")
    assert await stream.read_line() == b"more later\n"
    assert await stream.read_line() == b""
    assert (await stream.result()).exit_code == 0
    stream.close()
    stream = await transport.open_stream(["cat"], input=b"")
    transport.keep("job", stream)
    assert transport.take("other") is None
    assert (transport.take("job"), transport.take("job")) == (stream, None), "taken once"
    stream.close()


async def test_kept_stream_ends_with_next_one_and_with_connection(
    server: Server, transport: SshTransport
) -> None:
    for number in range(2):
        transport.keep(f"job {number}", await transport.open_stream(["cat"], input=b""))
    assert transport.take("job 0") is None
    await server.children[0].wait()
    await transport.close()
    await server.children[1].wait()
    assert transport.take("job 1") is None


async def test_stream_yields_chunks_then_result(transport: SshTransport) -> None:
    async with transport.stream(["sh", "-c", "seq 200000; echo done >&2; exit 4"]) as stream:
        data = b"".join([chunk async for chunk in stream.chunks()])
        result = await stream.result()
    assert data == b"".join(b"%d\n" % number for number in range(1, 200001))
    assert (result.exit_code, result.stderr) == (4, b"done\n")


async def test_put_preserves_file_mode(
    server: Server, transport: SshTransport, tmp_path: Path
) -> None:
    await transport.put(b"secret", "deep/er/a file", mode=0o600)
    written = server.home / "deep/er/a file"
    assert written.read_bytes() == b"secret"
    assert written.stat().st_mode & 0o777 == 0o600
    big = tmp_path / "big"
    big.write_bytes(os.urandom(3_000_000))
    reported: list[tuple[int, int]] = []
    await transport.put(big, "big", mode=0o755, progress=lambda *done: reported.append(done))
    assert (server.home / "big").read_bytes() == big.read_bytes()
    assert (server.home / "big").stat().st_mode & 0o777 == 0o755
    assert reported[-1] == (3_000_000, 3_000_000)
    assert reported == sorted(reported)


async def test_failed_put_is_reported(server: Server, transport: SshTransport) -> None:
    (server.home / "file").touch()
    with pytest.raises(RemoteFailed, match="worker 3: writing file/x"):
        await transport.put(b"x" * 1_000_000, "file/x")


async def test_interrupted_put_leaves_no_partial_file(
    server: Server, transport: SshTransport
) -> None:
    await transport.put(b"old", "data")
    seen: list[bytes] = []

    def cut(done: int, size: int) -> None:
        if done > size // 2 and not seen:
            server.drop()
            seen.append((server.home / "data").read_bytes())

    await transport.put(b"n" * 20_000_000, "data", progress=cut)
    assert seen == [b"old"]
    assert (server.home / "data").read_bytes() == b"n" * 20_000_000
    await async_until(
        lambda: [path.name for path in server.home.iterdir()] == ["data"], "the end of the copy"
    )


async def test_run_retries_after_dropped_connection(
    server: Server, transport: SshTransport
) -> None:
    """The response was lost: the command has run, and may still be running."""
    until_dropped = "cat >> runs; until [ -e dropped ]; do sleep 0.02; done"
    task = asyncio.ensure_future(transport.run(["sh", "-c", until_dropped], input=b"1"))
    runs = server.home / "runs"
    async with asyncio.timeout(20):
        await async_until(lambda: runs.exists() and runs.read_bytes() == b"1", "the first run")
        server.drop()
        (server.home / "dropped").touch()
        assert (await task).exit_code == 0
    assert (server.home / "runs").read_bytes() == b"11"


async def test_drop_while_connecting_is_retried(server: Server, transport: SshTransport) -> None:
    server.refused = 3
    assert (await transport.run(["echo", "here"])).stdout == b"here\n"
    assert server.refused == 0
    await transport.close()
    server.refused = 1
    assert await fetch_host_key("127.0.0.1", server.address.port) == server.address.host_keys[0]


async def test_retries_end_when_every_connection_drops(
    server: Server, transport: SshTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpuctl.remote.transport.RETRY_SECONDS", 0.5)
    server.refused = 1000
    with pytest.raises(Unreachable, match="worker 3"):
        await transport.run(["true"])
    assert server.refused < 999


async def test_user_command_is_never_retried(server: Server, transport: SshTransport) -> None:
    def drop(data: bytes) -> None:
        server.drop()

    with pytest.raises(Transient):
        await transport.run_streaming("echo once >> runs; echo once; exec sleep 60", drop, drop)
    assert (server.home / "runs").read_bytes() == b"once\n"


async def test_next_call_reconnects_after_drop(server: Server, transport: SshTransport) -> None:
    async with transport.stream(["sh", "-c", "echo first; exec sleep 60"]) as stream:
        chunks = stream.chunks()
        assert await anext(chunks) == b"first\n"
        server.drop()
        with pytest.raises(Transient, match="worker 3"):
            await anext(chunks, b"")
            await stream.result()
    assert (await transport.run(["echo", "again"])).stdout == b"again\n"


async def test_wrong_host_key_is_rejected(server: Server, key: KeyPair) -> None:
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key("openssh").decode()
    pool = SshPool()
    await pool.reuse(SshTransport(0, server.address, key.path)).run(["true"])
    recreated = SshTransport(0, replace(server.address, host_keys=(other,)), key.path)
    for transport in (recreated, pool.reuse(recreated)):  # nor is its connection reused
        with pytest.raises(Conflict, match="host key mismatch"):
            await transport.run(["true"])
    await pool.close()
    address = replace(server.address, host_keys=("ssh-ed25519 nonsense",))
    with pytest.raises(Conflict, match="Invalid worker host key"):
        await SshTransport(0, address, key.path).run(["true"])


# Under `Host *` in a user's configuration: each breaks, hangs or silences a command on a machine.
FOR_ALL_HOSTS = """\
Host *
    RemoteCommand tmux
    SessionType none
    ForkAfterAuthentication yes
    StdinNull yes
    RequestTTY force
    PermitLocalCommand yes
    LocalCommand echo local
    HostName %h.example.com
    HostKeyAlias other
    ProxyCommand false
    PubkeyAuthentication no
    PreferredAuthentications password
    AddressFamily inet6
"""


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        ("", 7, ""),
        ("LocalForward 1 localhost:1\n    ExitOnForwardFailure yes", 7, ""),
        ("HostKeyAlgorithms ssh-rsa", 255, "no matching host key type found"),
        (
            "LogLevel QUIET\n    MACs hmac-md5\n    Ciphers 3des-cbc",
            255,
            "no matching cipher found",
        ),
    ],
)
async def test_ssh_works_whatever_the_user_sets_for_all_hosts(
    more: str, code: int, message: str, server: Server, key: KeyPair, tmp_path: Path
) -> None:
    skip_without("ssh")
    configuration = tmp_path / "config"
    configuration.write_text(f"{FOR_ALL_HOSTS}    {more}\n", "utf-8")
    program, *rest = openssh_command(server.address, key.path, tmp_path / "h", "cat; exit 7")
    ssh = await asyncio.create_subprocess_exec(
        *(program, "-F", str(configuration), *rest),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, error = await asyncio.wait_for(ssh.communicate(b"input\n"), 30)
    assert (ssh.returncode, message in error.decode()) == (code, True), error
    assert out == (b"input\n" if code == 7 else b"")


async def test_pool_logs_in_once_to_the_same_machine(server: Server, key: KeyPair) -> None:
    pool = SshPool()
    for _ in range(2):
        transport = pool.reuse(SshTransport(0, server.address, key.path))
        assert (await transport.run(["echo", "out"])).stdout == b"out\n"
    assert len(server.connections) == 1
    await pool.close()
    await async_until(server.connections[0].is_closed, "the end of the connection")


async def test_rejected_key_has_hint(server: Server, tmp_path: Path) -> None:
    stranger = SshTransport(0, server.address, default_key(tmp_path / "other").path)
    with pytest.raises(Unreachable, match="SSH key rejected by worker") as refused:
        await stranger.run(["true"])
    assert "tpuctl up" in refused.value.diagnostics[0].hint


async def test_connection_error_names_worker_and_address(server: Server, key: KeyPair) -> None:
    address = server.address
    await server.close()
    gone = SshTransport(5, address, key.path)
    with pytest.raises(Unreachable, match=f"worker 5 at 127.0.0.1:{address.port}"):
        await gone.run(["true"])
    await server.start()  # for the fixture to close


@pytest.fixture
async def silent_port() -> AsyncIterator[int]:
    """The port of a server that accepts connections and sends nothing."""

    async def send_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    silent = await asyncio.start_server(send_nothing, "127.0.0.1", 0)
    yield silent.sockets[0].getsockname()[1]
    silent.close()
    await silent.wait_closed()


async def test_silent_server_times_out(key: KeyPair, silent_port: int) -> None:
    public = " ".join(key.public_line.split()[:2])
    address = Address("127.0.0.1", silent_port, "someone", (public,))
    with pytest.raises(Unreachable, match="worker 0"):
        await SshTransport(0, address, key.path, connect_seconds=0.3).run(["true"])
    with pytest.raises(Unreachable, match=f"127.0.0.1:{silent_port}: timed out"):
        await asyncio.wait_for(fetch_host_key("127.0.0.1", silent_port, seconds=0.3), 10)


def test_default_key_is_generated_once_and_private(tmp_path: Path) -> None:
    first = default_key(tmp_path / "ssh")
    assert first.path.stat().st_mode & 0o777 == 0o600
    assert first.public_line.startswith("ssh-ed25519 ")
    assert default_key(tmp_path / "ssh") == first
    assert [path.name for path in first.path.parent.iterdir()] == ["id_ed25519"]
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(Usage, match="file/ssh") as caught:
        default_key(tmp_path / "file" / "ssh")
    assert "TPUCTL_CONFIG_HOME" in caught.value.diagnostics[0].hint
    assert config_home({"TPUCTL_CONFIG_HOME": str(tmp_path)}) == tmp_path
    assert config_home({}).name == "tpuctl"


def test_unusable_key_is_named(tmp_path: Path) -> None:
    locked = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"x"),
    )
    (tmp_path / "public").write_text("ssh-ed25519 AAAA")
    (tmp_path / "locked").write_bytes(locked)
    for path, message in (
        (Path("~no-such-user/key"), "no such user"),
        (tmp_path / "none", "Cannot read SSH key"),
        (tmp_path / "public", "Unusable SSH key"),
        (tmp_path / "locked", "Unusable SSH key"),
    ):
        with pytest.raises(Usage, match=message):
            load_key(path)
