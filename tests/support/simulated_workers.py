"""A local cloud whose workers answer SSH like supervisors, without doing the work.

    simulated_workers.py HOME WORKERS

For `run`, such workers are machines with their own cores some distance away: messages arrive after
`LATENCY`, and what a worker would do takes a constant time. All of them share one process, whose
encryption takes time that real workers would spend in parallel; its report says how much.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import asyncssh

from tests.support.null_host import NullHost
from tpuctl.emulator.machines.interface import Endpoint
from tpuctl.emulator.server import Server

LATENCY = 0.025  # seconds in each direction
PREPARATION = 0.3  # seconds to start a supervisor, to fetch a small bundle, and to be ready
SCRIPT_START = 0.05  # seconds from the start signal to the script's first line
LINE = b"hello\n"
# Cheap to compute, since one process encrypts for all workers.
CIPHERS = ["aes128-gcm@openssh.com"]
KEY_EXCHANGES = ["curve25519-sha256"]
FOLDER = re.compile(r"\.tpuctl/jobs/(?P<job>[^/]+)/(?P<attempt>\d+)")


@dataclass
class Received:
    """What a worker received before it sent the first line of its log."""

    connections: int = 0
    commands: list[str] = field(default_factory=list)  # jobs, sh, signal, log, touch, test, …


@dataclass
class Simulation:
    """What all workers received, known once the job's first lines were sent."""

    workers: list[Received] = field(default_factory=list)
    cpu_seconds: float = 0.0  # of all workers, from the first connection to the first line


class Worker:
    """The supervisor of one job, as seen through SSH."""

    def __init__(self, number: int, on_line: Callable[[], None]) -> None:
        self.number = number
        self.on_line = on_line
        self.received = Received()
        self.received_before_line: Received | None = None
        self.has_started = asyncio.Event()

    async def execute(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        assert process.command is not None
        argv = shlex.split(process.command)
        where = next((match for word in argv if (match := FOLDER.search(word))), None)
        if where is None:  # which jobs run here? None so far
            self.received.commands.append("jobs")
            process.exit(0)
            return
        name = argv[4] if argv[0] == "python3" else argv[0]
        self.received.commands.append(name)
        code = await getattr(self, f"_{name}")(process, where)
        process.exit(code)

    async def _sh(self, process: Any, where: re.Match[str]) -> int:
        """Receive the programs and start the supervisor, and send the log if that is requested."""
        await process.stdin.readexactly(int(shlex.split(process.command)[5]))
        await self._start(process, where)
        while line := await process.stdin.readline():
            if line != b"start\n":
                self.received.commands.append("log")
                return await self._send_log(process, where, int(line))
            self.received.commands.append("signal")
            self.has_started.set()
            process.stdout.write(b"started\n")
        return 0

    async def _start(self, process: Any, where: re.Match[str]) -> int:
        if not self.has_started.is_set():
            await asyncio.sleep(PREPARATION)
        if "running" in shlex.split(process.command):  # a job of one worker needs no signal
            self.has_started.set()
        state = "running" if self.has_started.is_set() else "ready"
        process.stdout.write(self._record(where, state=state))
        return 0

    async def _touch(self, process: Any, where: re.Match[str]) -> int:
        self.has_started.set()
        return 0

    async def _test(self, process: Any, where: re.Match[str]) -> int:
        return 0 if self.has_started.is_set() else 1

    async def _tail(self, process: Any, where: re.Match[str]) -> int:
        argv = shlex.split(process.command)
        return await self._send_log(process, where, int(argv[argv.index("--offset") + 1]))

    async def _send_log(self, process: Any, where: re.Match[str], offset: int) -> int:
        await self.has_started.wait()
        await asyncio.sleep(SCRIPT_START)
        if self.received_before_line is None:
            received = self.received
            self.received_before_line = Received(received.connections, [*received.commands])
            self.on_line()
        process.stdout.write(LINE[offset:])
        end = {"exit_code": 0, "finished": _now(), "log_bytes": len(LINE), "log_uploaded": True}
        process.stderr.write(self._record(where, state="succeeded", **end))
        return 0

    def _record(self, where: re.Match[str], **fields: Any) -> bytes:
        identity = {"job": where["job"], "attempt": int(where["attempt"]), "worker": self.number}
        return json.dumps({**identity, "started": _now(), **fields}).encode() + b"\n"


def _now() -> str:
    return datetime.now(UTC).isoformat()


class _Workers:
    """SSH servers on ports of the loopback, one for each worker."""

    def __init__(self, count: int, latency: float) -> None:
        self._workers = [Worker(number, self._on_line) for number in range(count)]
        self._latency = latency
        self._host_key = asyncssh.generate_private_key("ssh-ed25519")
        self._ports: list[int] = []
        self._began = 0.0  # CPU seconds of this process at the first connection
        self._cpu_seconds = 0.0

    async def start(self) -> list[asyncssh.SSHAcceptor]:
        acceptors = []
        for worker in self._workers:
            listening = socket.create_server(("127.0.0.1", 0))
            self._ports.append(listening.getsockname()[1])
            acceptor = await asyncssh.listen(
                tunnel=_Distance(listening, self._latency),
                server_factory=partial(_Connection, worker, self._on_connection),
                server_host_keys=[self._host_key],
                process_factory=worker.execute,
                encoding=None,
                encryption_algs=CIPHERS,
                kex_algs=KEY_EXCHANGES,
                compression_algs=["none"],
                gss_host=None,
                config=None,
            )
            acceptors.append(acceptor)
        return acceptors

    def port(self, machine: str) -> int:
        """The SSH port of a machine named `…/workers/N`."""
        return self._ports[int(machine.rpartition("/")[2])]

    @property
    def host_keys(self) -> dict[str, str]:
        kind, text = self._host_key.export_public_key("openssh").decode().split()[:2]
        return {kind: text}

    def simulation(self) -> Simulation:
        received = [worker.received_before_line or Received() for worker in self._workers]
        return Simulation(received, self._cpu_seconds)

    def _on_connection(self) -> None:
        self._began = self._began or time.process_time()

    def _on_line(self) -> None:
        self._cpu_seconds = self._cpu_seconds or time.process_time() - self._began


class _Connection(asyncssh.SSHServer):
    """Accepts every key."""

    def __init__(self, worker: Worker, on_connection: Callable[[], None]) -> None:
        self._worker = worker
        self._on_connection = on_connection

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._on_connection()
        self._worker.received.connections += 1

    def begin_auth(self, username: str) -> bool:
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return True


class _Distance:
    """Where `asyncssh.listen` accepts connections from: a socket behind a slow line."""

    def __init__(self, listening: socket.socket, latency: float) -> None:
        self._listening = listening
        self._latency = latency

    async def create_server(
        self, factory: Callable[[str, int], Any], host: str, port: int
    ) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        return await loop.create_server(
            lambda: _Delayed(factory("", 0), self._latency), sock=self._listening
        )


class _Line:
    """Calls functions in order, each after a delay."""

    def __init__(self, latency: float) -> None:
        self._latency = latency
        self._loop = asyncio.get_running_loop()
        self._pending: deque[Callable[[], None]] = deque()
        self._due = 0.0

    def send(self, function: Callable[..., None], *arguments: Any, trips: int = 1) -> None:
        self._due = max(self._due, self._loop.time() + trips * self._latency)
        self._pending.append(partial(function, *arguments))
        self._loop.call_at(self._due, self._deliver)

    def _deliver(self) -> None:
        self._pending.popleft()()  # timers of the same time may fire in any order


class _Delayed(asyncio.Protocol):
    """Passes on what arrives and what is sent, after the latency."""

    def __init__(self, connection: Any, latency: float) -> None:
        self._connection = connection
        self._latency = latency
        self._line = _Line(latency)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A TCP handshake takes three trips until the server can send.
        delayed = _DelayedTransport(transport, self._latency)
        self._line.send(self._connection.connection_made, delayed, trips=3)

    def data_received(self, data: bytes) -> None:
        self._line.send(self._connection.data_received, data)

    def eof_received(self) -> bool:
        self._line.send(self._connection.eof_received)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._line.send(self._connection.connection_lost, exc)


class _DelayedTransport:
    def __init__(self, transport: Any, latency: float) -> None:
        self._transport = transport
        self._line = _Line(latency)

    def write(self, data: bytes) -> None:
        self._line.send(self._transport.write, data)

    def close(self) -> None:
        self._line.send(self._transport.close)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _Host(NullHost):
    """Stub machines with the addresses and the host key of simulated workers."""

    def __init__(self, workers: _Workers, home: Path, api_address: tuple[str, int]) -> None:
        super().__init__(home, api_address)
        self._workers = workers

    async def reserve(self, names: Sequence[str]) -> list[Endpoint]:
        for name in names:
            self.reserved.setdefault(name, Endpoint("127.0.0.1", self._workers.port(name)))
        return [self.reserved[name] for name in names]

    def guest_attributes(self, name: str) -> Mapping[str, Mapping[str, str]]:
        return {"hostkeys": self._workers.host_keys}


@asynccontextmanager
async def simulated_cloud(
    home: Path, count: int, latency: float = LATENCY
) -> AsyncIterator[tuple[Server, Callable[[], Simulation]]]:
    """A local cloud with simulated workers in this process; the function reports on them."""
    workers = _Workers(count, latency)
    acceptors = await workers.start()
    server = Server(home, partial(_Host, workers), pace="instant")
    await server.start()
    try:
        yield server, workers.simulation
    finally:
        for acceptor in acceptors:
            acceptor.close()
        await server.close()


@contextmanager
def simulation(home: Path, count: int) -> Iterator[Simulation]:
    """The same in another process, located by TPUCTL_LOCAL_HOME; complete after the exit."""
    result = Simulation()
    command = [sys.executable, "-m", "tests.support.simulated_workers", str(home), str(count)]
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        address = {"url": f"http://127.0.0.1:{port}", "port": port, "pid": process.pid}
        (home / "server.json").write_text(json.dumps({**address, "pace": "instant"}), "utf-8")
        os.environ["TPUCTL_LOCAL_HOME"] = str(home)
        try:
            yield result
        finally:
            process.terminate()
            report = json.loads(process.stdout.read())
            result.workers = [Received(**received) for received in report["workers"]]
            result.cpu_seconds = report["cpu_seconds"]


async def _serve(home: Path, count: int) -> None:
    async with simulated_cloud(home, count) as (server, report):
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, server.stopping.set)
        print(server.port, flush=True)
        await server.stopping.wait()
        print(json.dumps(asdict(report())), flush=True)


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]), int(sys.argv[2])))
