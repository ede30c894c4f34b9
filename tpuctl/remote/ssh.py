"""Workers over SSH: one connection each, host keys pinned, nothing read from the user's setup."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh

from tpuctl.errors import Conflict, RemoteFailed, Transient, Unreachable
from tpuctl.files import private_folder
from tpuctl.remote.iap import IapWay, Opened
from tpuctl.remote.transport import Progress, Result, Stream, retried

__all__ = ["Address", "SshTransport", "ask_host_key", "program"]

CONNECT_SECONDS = 15.0
KEEPALIVE_SECONDS, KEEPALIVE_COUNT = 15, 3
CHUNK = 1 << 18
# How a connection ends while it is being made, as by a server with too many of them.
DROPS = (asyncssh.ConnectionLost, ConnectionResetError, BrokenPipeError)
# The only shell there is: it keeps a partial file from ever being taken for the whole one.
PUT = (
    'part="$1.$$.part"; mkdir -p "$(dirname "$1")" && cat > "$part" && '
    'test "$(wc -c < "$part")" -eq "$2" && chmod "$3" "$part" && mv -f "$part" "$1" '
    '|| { rm -f "$part"; false; }'
)


@dataclass(frozen=True)
class Address:
    """Where a worker's SSH server is, and the public host keys it must prove to have."""

    host: str
    port: int
    user: str
    host_keys: tuple[str, ...]  # "ssh-ed25519 AAAA…"
    way: IapWay | None = None  # what leads there, where the address alone does not
    remembered: Path | None = None  # where the keys were kept that it showed at first

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" if self.way is None else str(self.way)


class SshTransport:
    """A Transport over asyncssh. The first call connects; a call after a drop connects again."""

    def __init__(
        self, worker: int, address: Address, key: Path, *, connect_seconds: float = CONNECT_SECONDS
    ) -> None:
        self._worker = worker
        self.address = address
        self._key = key
        self._connect_seconds = connect_seconds
        self._connection: asyncssh.SSHClientConnection | None = None
        self._opened: Opened | None = None  # the way that the connection takes
        self._connecting = asyncio.Lock()

    @property
    def worker(self) -> int:
        return self._worker

    async def connect(self) -> None:
        """Make the connection now, to see whether it can be made."""
        await retried(self._connected)

    async def run(self, argv: Sequence[str], *, input: bytes | None = None) -> Result:
        return await retried(lambda: self._run(argv, input))

    async def _run(self, argv: Sequence[str], input: bytes | None) -> Result:
        connection = await self._connected()
        with self._converted():
            done = await connection.run(
                shlex.join(argv),
                input=input,
                stdin=asyncssh.DEVNULL if input is None else asyncssh.PIPE,
                encoding=None,
            )
            return _result(done, done.stdout, done.stderr)

    @asynccontextmanager
    async def stream(self, argv: Sequence[str]) -> AsyncIterator[Stream]:
        connection = await self._connected()
        with self._converted():
            process = await connection.create_process(
                shlex.join(argv), stdin=asyncssh.DEVNULL, encoding=None
            )
        stream = _SshStream(self, process)
        try:
            yield stream
        finally:
            stream.close()

    async def put(
        self,
        source: bytes | Path,
        path: str,
        *,
        mode: int = 0o644,
        progress: Progress | None = None,
    ) -> None:
        await retried(lambda: self._put(source, path, mode, progress))

    async def _put(
        self, source: bytes | Path, path: str, mode: int, progress: Progress | None
    ) -> None:
        size = _size(source)
        connection = await self._connected()
        command = shlex.join(["sh", "-c", PUT, "sh", path, str(size), f"{mode:o}"])
        with self._converted():
            async with connection.create_process(command, encoding=None) as process:
                try:
                    done = 0
                    for piece in _pieces(source):
                        process.stdin.write(piece)
                        await process.stdin.drain()
                        done += len(piece)
                        if progress is not None:
                            progress(done, size)
                    process.stdin.write_eof()
                except (BrokenPipeError, asyncssh.BreakReceived):
                    pass  # the command ended early, and says why below
                stdout, stderr = await process.communicate()
                result = _result(process, stdout, stderr)
        result.checked(f"worker {self.worker}: writing {path}")

    async def pour(
        self, line: str, out: Callable[[bytes], None], error: Callable[[bytes], None]
    ) -> int:
        """Run a shell's line, once; what it writes as it comes, and its exit code.

        Cancelling interrupts it, as Ctrl-C would.
        """
        connection = await retried(self._connected)
        with self._converted():
            process = await connection.create_process(line, stdin=asyncssh.DEVNULL, encoding=None)
            try:
                await asyncio.gather(_each(process.stdout, out), _each(process.stderr, error))
                await process.wait_closed()
                return _result(process, b"", b"").exit_code
            finally:
                if process.returncode is None:
                    with suppress(OSError):  # it has gone meanwhile
                        process.send_signal("INT")
                process.close()

    async def files(self) -> asyncssh.SFTPClient:
        """A session for files, which ends with the connection at the latest."""
        return await retried(self._files)

    async def _files(self) -> asyncssh.SFTPClient:
        connection = await self._connected()
        with self._converted():
            try:
                return await connection.start_sftp_client()
            except asyncssh.ChannelOpenError as error:
                _require_open(connection)
                raise RemoteFailed(
                    "Worker offers no files",
                    f"worker {self.worker}: {error.reason}",
                    hint=(
                        "Its SSH server has no SFTP. Send files through a shell instead:\n"
                        "    tpuctl ssh -- 'cat > FILE' < FILE"
                    ),
                ) from error

    async def dial(self, port: int) -> tuple[asyncssh.SSHReader[bytes], asyncssh.SSHWriter[bytes]]:
        """A connection to a port of the worker's own loopback. Raises RemoteFailed if refused."""
        return await retried(lambda: self._dial(port))

    async def _dial(self, port: int) -> tuple[asyncssh.SSHReader[bytes], asyncssh.SSHWriter[bytes]]:
        connection = await self._connected()
        with self._converted():
            try:
                return await connection.open_connection("localhost", port)
            except asyncssh.ChannelOpenError as error:
                _require_open(connection)
                raise RemoteFailed(
                    "Nothing answers there",
                    f"worker {self.worker}, port {port}: {error.reason}",
                    hint="See what listens on the worker, and whether the program runs:\n"
                    "    tpuctl ssh -- ss -ltn",
                ) from error

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
            await connection.wait_closed()
        await self._leave()

    async def _leave(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.close()

    async def _connected(self) -> asyncssh.SSHClientConnection:
        async with self._connecting:
            if self._connection is None or self._connection.is_closed():
                self._connection = await self._connect()
            return self._connection

    async def _connect(self) -> asyncssh.SSHClientConnection:
        address = self.address
        where = f"worker {self.worker} at {address}"
        await self._leave()  # what is left of the connection before
        try:
            keys = [asyncssh.import_public_key(line) for line in address.host_keys]
            if address.way is not None:
                self._opened = await address.way.open()
            return await asyncssh.connect(
                address.host,
                address.port,
                sock=self._opened.socket if self._opened is not None else None,
                username=address.user,
                client_keys=[str(self._key)],
                known_hosts=(keys, [], []),
                agent_path=None,
                config=None,
                preferred_auth="publickey",
                compression_algs=None,  # bundles are compressed, logs are to be fast
                connect_timeout=self._connect_seconds,
                login_timeout=self._connect_seconds,
                keepalive_interval=KEEPALIVE_SECONDS,
                keepalive_count_max=KEEPALIVE_COUNT,
            )
        except asyncssh.KeyImportError as error:
            raise Conflict(
                "Worker's host key cannot be read",
                f"{where}: {error}",
                hint=(
                    "What the cloud tells of the machine is broken. Have the node made anew:\n"
                    "    tpuctl down\n    tpuctl up"
                ),
            ) from error
        except asyncssh.HostKeyNotVerifiable as error:
            raise _other_host_key(where, address.remembered) from error
        except asyncssh.PermissionDenied as error:
            raise Unreachable(
                "Worker refused the SSH key",
                f"{where}, user {address.user}, key {self._key}",
                hint="Bring the node's keys up to date with\n    tpuctl up",
            ) from error
        except (asyncssh.Error, OSError) as error:
            if self._opened is not None and self._opened.failure is not None:
                raise self._opened.failure from error
            raise _unreachable(error)(
                "Worker cannot be reached",
                f"{where}: {_reason(error)}",
                hint="See whether the node is READY with\n    tpuctl status\n"
                "Its network must let port 22 in from this machine's address.",
            ) from error

    @contextmanager
    def _converted(self) -> Iterator[None]:
        """Drops of the connection as Transient, naming the worker."""
        try:
            yield
        except (asyncssh.Error, OSError) as error:
            why = self._opened.failure if self._opened is not None else None
            raise Transient(
                "Connection to a worker dropped",
                f"worker {self.worker} at {self.address}: {why or error}",
                hint="Repeat the command. Whether the machine still runs:\n    tpuctl status",
            ) from error


class _SshStream:
    def __init__(self, transport: SshTransport, process: asyncssh.SSHClientProcess[bytes]) -> None:
        self._transport = transport
        self._process = process
        # Read from the start: a command that says much there would wait for ever otherwise.
        self._stderr = asyncio.ensure_future(process.stderr.read())

    def close(self) -> None:
        self._stderr.cancel()
        self._process.close()

    async def chunks(self) -> AsyncIterator[bytes]:
        while True:
            with self._transport._converted():
                piece = await self._process.stdout.read(CHUNK)
            if not piece:
                return
            yield piece

    async def result(self) -> Result:
        with self._transport._converted():
            stderr = await self._stderr
            await self._process.wait_closed()
            if self._process.returncode is None:
                raise asyncssh.ConnectionLost("the command's end was not reported")
            return _result(self._process, b"", stderr)


def _other_host_key(where: str, remembered: Path | None) -> Conflict:
    """Nothing was sent: the key is proven before anything else."""
    said = "Another machine answers there, or somebody is in between: nothing was sent.\n"
    if remembered is None:
        hint = (
            f"{said}Repeat the command: the machine's keys are asked of the cloud each time. "
            "If it stays so, trust the machine no more and make it anew with\n"
            "    tpuctl down\n    tpuctl up"
        )
    else:
        hint = (
            f"{said}The key that it showed at first was kept. If you know why it has another now, "
            f"forget that one with\n    rm {shlex.quote(str(remembered))}"
        )
    return Conflict("Worker's host key is not the expected one", where, hint=hint)


def _require_open(connection: asyncssh.SSHClientConnection) -> None:
    """What is refused by a connection that drops is told as the drop that it is."""
    if connection.is_closed():
        raise asyncssh.ConnectionLost("the connection was lost")


async def _each(reader: asyncssh.SSHReader[bytes], take: Callable[[bytes], None]) -> None:
    while piece := await reader.read(CHUNK):
        take(piece)


def _result(done: Any, stdout: Any, stderr: Any) -> Result:
    if done.returncode is None:
        raise asyncssh.ConnectionLost("the command's end was not reported")
    code = done.returncode if done.returncode >= 0 else 128 - done.returncode
    return Result(code, stdout or b"", stderr or b"")


def _size(source: bytes | Path) -> int:
    return len(source) if isinstance(source, bytes) else source.stat().st_size


def _pieces(source: bytes | Path) -> Iterator[bytes]:
    if isinstance(source, bytes):
        for start in range(0, len(source), CHUNK):
            yield source[start : start + CHUNK]
        return
    with source.open("rb") as file:
        while piece := file.read(CHUNK):
            yield piece


def _unreachable(error: Exception) -> type[Unreachable]:
    """What a connection that could not be made failed with: Transient where it had begun."""
    return Transient if isinstance(error, DROPS) else Unreachable


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or "no answer in time"


async def ask_host_key(
    host: str, port: int, way: IapWay | None = None, *, seconds: float = CONNECT_SECONDS
) -> str:
    """The public host key that a server shows, as "ssh-ed25519 AAAA…", without proof."""
    return await retried(lambda: _ask_host_key(host, port, way, seconds))


async def _ask_host_key(host: str, port: int, way: IapWay | None, seconds: float) -> str:
    where = f"{host}:{port}" if way is None else str(way)
    opened: Opened | None = None
    try:
        async with asyncio.timeout(seconds):
            opened = await way.open() if way is not None else None
            sock = opened.socket if opened is not None else None
            key = await asyncssh.get_server_host_key(host, port, sock=sock, config=None)
    except (asyncssh.Error, OSError) as error:
        raise _unreachable(error)(
            "Worker cannot be reached",
            f"{where}: {_reason(error)}",
            hint="See whether the machine runs, then have firewall rules and keys put right:\n"
            "    tpuctl status\n"
            "    tpuctl up",
        ) from error
    finally:
        if opened is not None:
            await opened.close()
    if key is None:
        raise Unreachable(
            "Worker cannot be reached",
            f"{where} shows no host key",
            hint="See whether the machine runs, then have firewall rules and keys put right:\n"
            "    tpuctl status\n"
            "    tpuctl up",
        )
    kind, text = key.export_public_key("openssh").decode().split()[:2]
    return f"{kind} {text}"


def program(
    address: Address, key: Path, known_hosts: Path, line: str = "", proxy: Sequence[str] = ()
) -> list[str]:
    """The command line of the `ssh` program for the same connection; writes `known_hosts`.

    A line is the remote shell's; without one it opens a shell. `proxy` is the command whose input
    and output lead to the server, where the address has a way of its own.
    """
    name = address.host if address.port == 22 else f"[{address.host}]:{address.port}"
    private_folder(known_hosts.parent)
    known_hosts.write_text("".join(f"{name} {line}\n" for line in address.host_keys), "utf-8")
    options = {
        "IgnoreUnknown": "KnownHostsCommand",  # of OpenSSH before 8.5
        "IdentitiesOnly": "yes",
        "StrictHostKeyChecking": "yes",
        # Quoted, as it may have spaces: it is a list, and knows tokens.
        "UserKnownHostsFile": '"{}"'.format(str(known_hosts).replace("%", "%%")),
        # No other keys than these, wherever the user's or the system's settings find some.
        "GlobalKnownHostsFile": "/dev/null",
        "KnownHostsCommand": "none",
        "VerifyHostKeyDNS": "no",
        "UpdateHostKeys": "no",
        # Jobs are programs of anybody's: they get no hold of the user's other keys and screen.
        "ForwardAgent": "no",
        "ForwardX11": "no",
        "LogLevel": "ERROR",
    }
    if proxy:
        options["ProxyCommand"] = shlex.join(proxy).replace("%", "%%")
    spelled = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
    target = f"{address.user}@{address.host}"
    # What comes after -- is no option, whatever it begins with.
    command = ["ssh", "-i", str(key), "-p", str(address.port), *spelled, "--", target]
    return [*command, line] if line else command
