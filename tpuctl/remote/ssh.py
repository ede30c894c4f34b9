"""SSH to workers: one connection each, pinned host keys, independent of the user's SSH
configuration."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh

from tpuctl.errors import Conflict, RemoteFailed, Transient, Unreachable
from tpuctl.model.workers.worker_numbering import ONE_SLICE, WorkerNumbering
from tpuctl.remote.iap import IapRoute, OpenRoute
from tpuctl.remote.transport import Progress, Result, Stream, with_retries

CONNECT_SECONDS = 15.0
KEEPALIVE_SECONDS, KEEPALIVE_COUNT = 15, 3
CHUNK_BYTES = 1 << 18
# How connecting fails while in progress, for example if the server has too many connections.
DROPS = (asyncssh.ConnectionLost, ConnectionResetError, BrokenPipeError)
KEYS_HINT = "Update the node's keys with\n    tpuctl up"
OS_LOGIN_HINT = (
    "The machine uses OS Login, and asks for a role. To see what is missing:\n    tpuctl doctor"
)
# With OS Login each account is another user. tpuctl's files are in the home of the first who came,
# as whom others work, if they may use sudo.
LIST_OWNERS = """sudo -n sh -c 'cd "$1" && stat -c "%W %n" */.tpuctl' sh "${HOME%/*}" 2>/dev/null"""
AS_OWNER = 'cd && exec "$@"'
# It replaces the file only once it is complete.
PUT = (
    'part="$1.$$.part"; mkdir -p "$(dirname "$1")" && cat > "$part" && '
    'test "$(wc -c < "$part")" -eq "$2" && chmod "$3" "$part" && mv -f "$part" "$1" '
    '|| { rm -f "$part"; false; }'
)


@dataclass(frozen=True)
class Address:
    """The address of a worker's SSH server, and the host keys it must present."""

    host: str
    port: int
    user: str
    host_keys: tuple[str, ...]  # "ssh-ed25519 AAAA…"
    route: IapRoute | None = None  # through IAP, if the address is not reachable directly
    pinned_keys_file: Path | None = None  # where the keys of the first connection are stored
    os_login: bool = False  # whether the user and key are of an OS Login profile

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" if self.route is None else str(self.route)


class SshTransport:
    """A Transport over asyncssh. The first call connects; a call after a drop reconnects."""

    def __init__(
        self,
        worker: int,
        address: Address,
        key: Path,
        *,
        numbering: WorkerNumbering = ONE_SLICE,
        connect_seconds: float = CONNECT_SECONDS,
    ) -> None:
        self._worker = worker
        self._numbering = numbering
        self.address = address
        self._key = key
        self._connect_seconds = connect_seconds
        self._connection: asyncssh.SSHClientConnection | None = None
        self._route: OpenRoute | None = None  # of the current connection
        self._connecting = asyncio.Lock()
        self._kept: tuple[str, Stream] | None = None
        self._run_as = ""  # the user of another home that has tpuctl's files

    @property
    def worker(self) -> int:
        return self._worker

    @property
    def name(self) -> str:
        return self._numbering.name(self._worker)

    @property
    def slice(self) -> int | None:
        """The worker's slice, in a stack of several."""
        return self._numbering.slice_of(self._worker)

    async def connect(self) -> None:
        """Connect now, to check that it works."""
        await with_retries(self._ensure_connected)

    async def run(self, argv: Sequence[str], *, input: bytes | None = None) -> Result:
        return await with_retries(lambda: self._run(argv, input))

    async def _run(self, argv: Sequence[str], input: bytes | None) -> Result:
        connection = await self._ensure_connected()
        with self._convert_errors():
            done = await connection.run(
                self._command(argv),
                input=input,
                stdin=asyncssh.DEVNULL if input is None else asyncssh.PIPE,
                encoding=None,
            )
            return _result(done, done.stdout, done.stderr)

    @asynccontextmanager
    async def stream(self, argv: Sequence[str]) -> AsyncIterator[Stream]:
        stream = await self.open_stream(argv)
        try:
            yield stream
        finally:
            stream.close()

    async def open_stream(self, argv: Sequence[str], *, input: bytes | None = None) -> Stream:
        connection = await self._ensure_connected()
        with self._convert_errors():
            process = await connection.create_process(
                self._command(argv),
                stdin=asyncssh.DEVNULL if input is None else asyncssh.PIPE,
                encoding=None,
            )
        stream = _SshStream(self, process)
        if input is not None:
            stream.write(input)
        return stream

    def keep(self, name: str, stream: Stream) -> None:
        self._close_kept()
        self._kept = name, stream

    def take(self, name: str) -> Stream | None:
        if self._kept is None or self._kept[0] != name:
            return None
        (_, stream), self._kept = self._kept, None
        return stream

    def _close_kept(self) -> None:
        if self._kept is not None:
            self._kept[1].close()
            self._kept = None

    async def put(
        self,
        source: bytes | Path,
        path: str,
        *,
        mode: int = 0o644,
        progress: Progress | None = None,
    ) -> None:
        await with_retries(lambda: self._put(source, path, mode, progress))

    async def _put(
        self, source: bytes | Path, path: str, mode: int, progress: Progress | None
    ) -> None:
        size = _size(source)
        connection = await self._ensure_connected()
        command = self._command(["sh", "-c", PUT, "sh", path, str(size), f"{mode:o}"])
        with self._convert_errors():
            async with connection.create_process(command, encoding=None) as process:
                try:
                    done = 0
                    for chunk in _read_source(source):
                        process.stdin.write(chunk)
                        await process.stdin.drain()
                        done += len(chunk)
                        if progress is not None:
                            progress(done, size)
                    process.stdin.write_eof()
                except (BrokenPipeError, asyncssh.BreakReceived):
                    pass  # the command ended early; its stderr says why
                stdout, stderr = await process.communicate()
                result = _result(process, stdout, stderr)
        result.check(f"worker {self.name}: writing {path}")

    async def run_streaming(
        self, line: str, out: Callable[[bytes], None], error: Callable[[bytes], None]
    ) -> int:
        """Run a shell command once, passing on its output as it arrives; returns its exit code.

        Cancellation interrupts it like Ctrl-C.
        """
        connection = await with_retries(self._ensure_connected)
        with self._convert_errors():
            process = await connection.create_process(line, stdin=asyncssh.DEVNULL, encoding=None)
            try:
                await asyncio.gather(
                    _read_chunks(process.stdout, out), _read_chunks(process.stderr, error)
                )
                await process.wait_closed()
                return _result(process, b"", b"").exit_code
            finally:
                if process.returncode is None:
                    with suppress(OSError):  # it has exited meanwhile
                        process.send_signal("INT")
                process.close()

    async def files(self) -> asyncssh.SFTPClient:
        """Open an SFTP session, which ends with the connection at the latest."""
        return await with_retries(self._files)

    async def _files(self) -> asyncssh.SFTPClient:
        connection = await self._ensure_connected()
        with self._convert_errors():
            try:
                return await connection.start_sftp_client()
            except asyncssh.ChannelOpenError as error:
                _require_open(connection)
                raise RemoteFailed(
                    "No SFTP on worker",
                    f"worker {self.name}: {error.reason}",
                    hint=(
                        "Its SSH server has no SFTP. Send files through a shell instead:\n"
                        "    tpuctl ssh -- 'cat > FILE' < FILE"
                    ),
                ) from error

    async def dial(self, port: int) -> tuple[asyncssh.SSHReader[bytes], asyncssh.SSHWriter[bytes]]:
        """Connect to a port on the worker's loopback. Raises RemoteFailed if refused."""
        return await with_retries(lambda: self._dial(port))

    async def _dial(self, port: int) -> tuple[asyncssh.SSHReader[bytes], asyncssh.SSHWriter[bytes]]:
        connection = await self._ensure_connected()
        with self._convert_errors():
            try:
                return await connection.open_connection("localhost", port)
            except asyncssh.ChannelOpenError as error:
                _require_open(connection)
                raise RemoteFailed(
                    "Nothing listens on the port",
                    f"worker {self.name}, port {port}: {error.reason}",
                    hint="See what listens on the worker, and whether the program is running:\n"
                    "    tpuctl ssh -- ss -ltn",
                ) from error

    async def close(self) -> None:
        self._close_kept()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
            await connection.wait_closed()
        await self._close_route()

    async def _close_route(self) -> None:
        route, self._route = self._route, None
        if route is not None:
            await route.close()

    async def _ensure_connected(self) -> asyncssh.SSHClientConnection:
        async with self._connecting:
            if self._connection is None or self._connection.is_closed():
                connection = await self._connect()
                if self.address.os_login:
                    with self._convert_errors():
                        self._run_as = await _other_owner(connection, self.address.user)
                self._connection = connection
            return self._connection

    def _command(self, argv: Sequence[str]) -> str:
        """The command line of a program of tpuctl, which finds its files in the current folder."""
        as_owner = ["sudo", "-n", "-H", "-u", self._run_as, "sh", "-c", AS_OWNER, "sh"]
        return shlex.join([*as_owner, *argv] if self._run_as else argv)

    async def _connect(self) -> asyncssh.SSHClientConnection:
        address = self.address
        where = f"worker {self.name} at {address}"
        await self._close_route()  # left over from the previous connection
        try:
            keys = [asyncssh.import_public_key(line) for line in address.host_keys]
            if address.route is not None:
                self._route = await address.route.open()
            return await asyncssh.connect(
                address.host,
                address.port,
                sock=self._route.socket if self._route is not None else None,
                username=address.user,
                client_keys=[str(self._key)],
                known_hosts=(keys, [], []),
                agent_path=None,
                config=None,
                preferred_auth="publickey",
                compression_algs=None,  # bundles are already compressed, logs need low latency
                connect_timeout=self._connect_seconds,
                login_timeout=self._connect_seconds,
                keepalive_interval=KEEPALIVE_SECONDS,
                keepalive_count_max=KEEPALIVE_COUNT,
            )
        except asyncssh.KeyImportError as error:
            raise Conflict(
                "Invalid worker host key",
                f"{where}: {error}",
                hint=(
                    "The host key that the cloud reports is invalid. Recreate the node:\n"
                    "    tpuctl down\n    tpuctl up"
                ),
            ) from error
        except asyncssh.HostKeyNotVerifiable as error:
            raise _host_key_mismatch(where, address.pinned_keys_file) from error
        except asyncssh.PermissionDenied as error:
            raise Unreachable(
                "SSH key rejected by worker",
                f"{where}, user {address.user}, key {self._key}",
                hint=OS_LOGIN_HINT if address.os_login else KEYS_HINT,
            ) from error
        except (asyncssh.Error, OSError) as error:
            if self._route is not None and self._route.failure is not None:
                raise self._route.failure from error
            raise _unreachable(error)(
                "Cannot reach worker",
                f"{where}: {_reason(error)}",
                hint="See whether the node is READY with\n    tpuctl status\n"
                "A firewall rule of its network must allow port 22 from this machine's address:\n"
                "    tpuctl up",
            ) from error

    @contextmanager
    def _convert_errors(self) -> Iterator[None]:
        """Convert dropped connections to Transient, naming the worker."""
        try:
            yield
        except (asyncssh.Error, OSError) as error:
            failure = self._route.failure if self._route is not None else None
            raise Transient(
                "Connection to worker lost",
                f"worker {self.name} at {self.address}: {failure or error}",
                hint="Repeat the command. To see whether the machine is still running:\n"
                "    tpuctl status",
            ) from error


async def _other_owner(connection: asyncssh.SSHClientConnection, user: str) -> str:
    """The user in whose home tpuctl's files are, "" if that is this one's."""
    done = await connection.run(LIST_OWNERS, stdin=asyncssh.DEVNULL, errors="replace")
    owners = re.findall(
        r"^(\d+) (?!root/)([A-Za-z_][\w.-]*)/\.tpuctl$", str(done.stdout), re.MULTILINE
    )
    _, owner = min(owners, default=("", user), key=lambda item: int(item[0]))
    return "" if owner == user else owner


class SshPool:
    """Transports that one command uses several times, so that it connects to each machine once.

    A recreated machine has another address or other host keys, and so a transport of its own.
    """

    def __init__(self) -> None:
        self._transports: dict[tuple[int, Address], SshTransport] = {}

    def reuse(self, transport: SshTransport) -> SshTransport:
        """The transport to that machine which is already in the pool; otherwise add this one."""
        return self._transports.setdefault((transport.worker, transport.address), transport)

    async def close(self) -> None:
        transports = [*self._transports.values()]
        self._transports.clear()
        await asyncio.gather(
            *(transport.close() for transport in transports), return_exceptions=True
        )


class _SshStream:
    def __init__(self, transport: SshTransport, process: asyncssh.SSHClientProcess[bytes]) -> None:
        self._transport = transport
        self._process = process
        # Read from the start, or a command with much stderr output would block.
        self._stderr = asyncio.ensure_future(process.stderr.read())

    def close(self) -> None:
        if not self._stderr.cancel() and not self._stderr.cancelled():
            self._stderr.exception()  # marks it as retrieved, so that asyncio does not log the drop
        self._process.close()

    async def chunks(self) -> AsyncIterator[bytes]:
        while True:
            with self._transport._convert_errors():
                chunk = await self._process.stdout.read(CHUNK_BYTES)
            if not chunk:
                return
            yield chunk

    async def read_line(self) -> bytes:
        with self._transport._convert_errors():
            return await self._process.stdout.readline()

    def write(self, data: bytes) -> None:
        with self._transport._convert_errors():
            self._process.stdin.write(data)

    async def result(self) -> Result:
        with self._transport._convert_errors():
            stderr = await self._stderr
            await self._process.wait_closed()
            if self._process.returncode is None:
                raise asyncssh.ConnectionLost("the command's end was not reported")
            return _result(self._process, b"", stderr)


def _host_key_mismatch(where: str, pinned_keys_file: Path | None) -> Conflict:
    """Nothing was sent: host keys are checked first."""
    warning = "Another machine answers, or the connection is intercepted. Nothing was sent.\n"
    if pinned_keys_file is None:
        hint = (
            f"{warning}Repeat the command: the keys are read from the cloud each time. "
            "If this persists, do not trust the machine; recreate it:\n"
            "    tpuctl down\n    tpuctl up"
        )
    else:
        hint = (
            f"{warning}The key of the first connection was saved. If you know why it "
            f"has changed, delete the saved key:\n    rm {shlex.quote(str(pinned_keys_file))}"
        )
    return Conflict("Worker host key mismatch", where, hint=hint)


def _require_open(connection: asyncssh.SSHClientConnection) -> None:
    """Report a refusal on a dropped connection as the drop."""
    if connection.is_closed():
        raise asyncssh.ConnectionLost("the connection was lost")


async def _read_chunks(reader: asyncssh.SSHReader[bytes], sink: Callable[[bytes], None]) -> None:
    while chunk := await reader.read(CHUNK_BYTES):
        sink(chunk)


def _result(done: Any, stdout: Any, stderr: Any) -> Result:
    if done.returncode is None:
        raise asyncssh.ConnectionLost("the command's end was not reported")
    code = done.returncode if done.returncode >= 0 else 128 - done.returncode
    return Result(code, stdout or b"", stderr or b"")


def _size(source: bytes | Path) -> int:
    return len(source) if isinstance(source, bytes) else source.stat().st_size


def _read_source(source: bytes | Path) -> Iterator[bytes]:
    if isinstance(source, bytes):
        for start in range(0, len(source), CHUNK_BYTES):
            yield source[start : start + CHUNK_BYTES]
        return
    with source.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def _unreachable(error: Exception) -> type[Unreachable]:
    """The error class for a failed connection: Transient if it dropped while connecting."""
    return Transient if isinstance(error, DROPS) else Unreachable


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or "timed out"


async def fetch_host_key(
    host: str, port: int, route: IapRoute | None = None, *, seconds: float = CONNECT_SECONDS
) -> str:
    """The public host key that a server presents, as "ssh-ed25519 AAAA…", unverified."""
    return await with_retries(lambda: _fetch_host_key(host, port, route, seconds))


async def _fetch_host_key(host: str, port: int, route: IapRoute | None, seconds: float) -> str:
    where = f"{host}:{port}" if route is None else str(route)
    open_route: OpenRoute | None = None
    try:
        async with asyncio.timeout(seconds):
            open_route = await route.open() if route is not None else None
            sock = open_route.socket if open_route is not None else None
            key = await asyncssh.get_server_host_key(host, port, sock=sock, config=None)
    except (asyncssh.Error, OSError) as error:
        raise _unreachable(error)(
            "Cannot reach worker",
            f"{where}: {_reason(error)}",
            hint="See whether the machine is running, then repair firewall rules and keys:\n"
            "    tpuctl status\n"
            "    tpuctl up",
        ) from error
    finally:
        if open_route is not None:
            await open_route.close()
    if key is None:
        raise Unreachable(
            "Cannot reach worker",
            f"{where} presents no host key",
            hint="See whether the machine is running, then repair firewall rules and keys:\n"
            "    tpuctl status\n"
            "    tpuctl up",
        )
    kind, text = key.export_public_key("openssh").decode().split()[:2]
    return f"{kind} {text}"
