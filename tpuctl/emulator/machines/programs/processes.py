"""A machine's processes, started and signaled by the server through the machine's init process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import tempfile
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tpuctl.emulator.machines.interface import MachineError
from tpuctl.emulator.machines.isolation.fork_server import Child, ForkServer, start_process

START_SECONDS = 20.0
FIRST_USER = 1000


def user_ids() -> tuple[int, int]:
    """The uid and gid of a machine's user: this computer's, but not root's.

    Where the user is root, sudo could not create a nested namespace: mapping uid 0 requires a
    capability that machines have dropped (CAP_SETFCAP in user_namespaces(7)).
    """
    return os.getuid() or FIRST_USER, os.getgid() or FIRST_USER


@dataclass(frozen=True)
class View:
    """A machine's view of the file system; everything not named here is read-only."""

    writable: tuple[str, ...]
    temporary: str  # becomes /tmp
    hostname: str
    readable: tuple[str, ...] = ()  # visible even inside hidden folders
    hidden: tuple[str, ...] = ()
    overlaid: Mapping[str, str] = field(default_factory=dict)  # path: file mounted there
    user: tuple[int, int] = field(default_factory=user_ids)
    # Where to listen in the machine's network namespace; None shares the computer's network.
    network: tuple[tuple[str, int], ...] | None = None
    is_watched: bool = False  # whether the server decides about its connections


@dataclass(frozen=True)
class Exit:
    """How a process ended: an exit status, or a signal number."""

    status: int = 0
    signal: int | None = None
    has_core: bool = False

    @property
    def code(self) -> int:
        """As in shells: the status, or 128 plus the signal number."""
        return self.status if self.signal is None else 128 + self.signal


@dataclass(frozen=True)
class RunningProcess:
    """A running process, the leader of its group, and the terminal's master end if it has one."""

    pid: int
    exit: asyncio.Future[Exit]
    terminal: int | None


class Init:
    """One machine's init process. When it or the server ends, all processes of the machine end."""

    def __init__(self, process: Child, control: socket.socket) -> None:
        self._process = process
        self._control = control
        self._buffer = b""
        self._descriptors: list[int] = []  # received, in order, and not claimed yet
        self._outgoing: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._starting: dict[int, asyncio.Future[RunningProcess]] = {}
        self._running: dict[int, asyncio.Future[Exit]] = {}
        self._connecting: dict[int, asyncio.Future[socket.socket]] = {}
        self._count = 0
        self.notifications: int | None = None  # about its connections; the caller may take it
        self.watch_problem: str | None = None
        self.listeners: dict[tuple[str, int], socket.socket] = {}  # in its network namespace
        self.ended = asyncio.Event()

    @classmethod
    async def start(cls, view: View | None, fork_server: ForkServer | None = None) -> Init:
        """Start an init process; without a view it has no namespaces. Raises MachineError."""
        parent_end, child_end = socket.socketpair()
        with child_end:
            try:
                process = await (
                    start_process(child_end)
                    if fork_server is None
                    else fork_server.start_process(child_end)
                )
            except OSError as problem:
                parent_end.close()
                raise MachineError(f"A machine could not be started: {problem}") from problem
        parent_end.setblocking(False)
        init = cls(process, parent_end)
        loop = asyncio.get_running_loop()
        loop.add_reader(parent_end.fileno(), init._on_readable)
        try:
            init._send({"view": None if view is None else asdict(view)})
            await asyncio.wait_for(init._ready, START_SECONDS)
        except (OSError, TimeoutError) as problem:
            await init.stop(0)
            raise MachineError(f"A machine could not be started: {problem!r}") from problem
        except BaseException:
            await init.stop(0)
            raise
        return init

    @property
    def pid(self) -> int:
        """The id of a process inside the machine's namespaces."""
        return self._process.pid

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        files: tuple[int, int, int] | None = None,
        terminal: tuple[int, int] | None = None,
        name: str | None = None,
    ) -> RunningProcess:
        """Start a program in a new session, on three files or a new terminal.

        `name` overrides argv[0]; the caller closes the files.
        """
        if self.ended.is_set():
            raise MachineError("The machine is shut down.")
        self._count += 1
        starting: asyncio.Future[RunningProcess] = asyncio.get_running_loop().create_future()
        self._starting[self._count] = starting
        request: dict[str, Any] = {
            "action": "spawn",
            "id": self._count,
            "argv": list(argv),
            "env": dict(env),
            "cwd": cwd,
            "name": name,
            "terminal": list(terminal) if terminal else None,
        }
        self._send(request, files or ())
        return await starting

    async def connect(self, address: str, port: int) -> socket.socket:
        """Connect inside the machine's network namespace; OSError if nothing listens there."""
        if self.ended.is_set():
            raise ConnectionRefusedError("The machine is shut down.")
        self._count += 1
        waiting: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()
        self._connecting[self._count] = waiting
        self._send({"action": "connect", "id": self._count, "address": address, "port": port})
        return await waiting

    def take_notifications(self) -> int | None:
        """The notifications about the machine's connections, which the caller closes."""
        notifications, self.notifications = self.notifications, None
        return notifications

    def signal(self, started: RunningProcess, number: int) -> None:
        """Send a signal to the process's group; no-op if it has ended."""
        if not started.exit.done() and not self.ended.is_set():
            self._send({"action": "signal", "pid": started.pid, "signal": number})

    async def stop(self, grace: float) -> None:
        """Stop all processes: SIGTERM, and SIGKILL after `grace` seconds. Idempotent."""
        if not self.ended.is_set() and grace > 0:
            self._send({"action": "stop", "grace": grace})
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.ended.wait(), grace + 2)
        self._close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), 5)
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    def _send(self, request: dict[str, Any], files: Sequence[int] = ()) -> None:
        """Queue a request, with copies of the files: the caller may close them immediately."""
        line = json.dumps(request).encode() + b"\n"
        self._outgoing.append((line, tuple(os.dup(descriptor) for descriptor in files)))
        if len(self._outgoing) == 1:
            self._flush()

    def _flush(self) -> None:
        """Write until the socket would block; the rest when it is writable again."""
        loop = asyncio.get_running_loop()
        while self._outgoing and not self.ended.is_set():
            line, files = self._outgoing[0]
            try:
                sent_bytes = socket.send_fds(self._control, [line], files)
            except BlockingIOError:
                loop.add_writer(self._control.fileno(), self._flush)
                return
            except OSError:
                self._close()
                return
            for descriptor in files:
                os.close(descriptor)
            if sent_bytes < len(line):
                self._outgoing[0] = (line[sent_bytes:], ())
            else:
                self._outgoing.popleft()
        if not self.ended.is_set():
            loop.remove_writer(self._control.fileno())

    def _on_readable(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, 1 << 16, 4)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        self._descriptors += descriptors
        if not data:
            self._close()
            return
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            self._handle_event(json.loads(line))

    def _handle_event(self, event: dict[str, Any]) -> None:
        if "ready" in event:
            self._ready.set_result(None)
        elif "failed" in event:
            self._ready.set_exception(MachineError(event["failed"]))
        elif "started" in event:
            # Created here and not in spawn: the exit event may follow in the same read.
            ended: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
            self._running[event["pid"]] = ended
            master = self._descriptors.pop(0) if event["terminal"] else None
            starting = self._starting.pop(event["started"])
            if not starting.done():
                starting.set_result(RunningProcess(event["pid"], ended, master))
            elif master is not None:
                os.close(master)  # the caller was canceled: hang up the program
        elif "watched" in event:
            self.notifications = self._descriptors.pop(0)
        elif "unwatched" in event:
            self.watch_problem = event["unwatched"]
        elif "listening" in event:
            address, port = event["listening"]
            self.listeners[address, port] = self._next_socket()
        elif "connected" in event:
            self._handle_connected(event)
        elif "exited" in event:
            waiting = self._running.pop(event["exited"], None)
            if waiting is not None and not waiting.done():
                core = event.get("core", False)
                waiting.set_result(Exit(event.get("status", 0), event.get("signal"), core))

    def _handle_connected(self, event: dict[str, Any]) -> None:
        future = self._connecting.pop(event["connected"])
        connection = None if "error" in event else self._next_socket()
        if future.done():  # the caller was canceled
            if connection is not None:
                connection.close()
        elif connection is None:
            future.set_exception(ConnectionRefusedError(event["error"]))
        else:
            future.set_result(connection)

    def _next_socket(self) -> socket.socket:
        received = socket.socket(fileno=self._descriptors.pop(0))
        received.setblocking(False)
        return received

    def _close(self) -> None:
        """Clean up after the machine's processes ended."""
        if self.ended.is_set():
            return
        self.ended.set()
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._control.fileno())
        loop.remove_writer(self._control.fileno())
        self._control.close()
        unsent = [descriptor for _, files in self._outgoing for descriptor in files]
        for descriptor in [*self._descriptors, *unsent]:
            os.close(descriptor)
        self._outgoing.clear()
        self._descriptors.clear()
        failure = MachineError("The machine's init process ended unexpectedly.")
        for listener in self.listeners.values():
            listener.close()
        if (notifications := self.take_notifications()) is not None:
            os.close(notifications)
        unanswered: list[asyncio.Future[Any]] = [self._ready, *self._starting.values()]
        unanswered += self._connecting.values()
        for future in unanswered:
            if not future.done():
                future.set_exception(failure)
                future.exception()  # mark it retrieved, even if no caller awaits it
        for waiting in self._running.values():
            if not waiting.done():
                waiting.set_result(Exit(signal=signal.SIGKILL))


@dataclass(frozen=True)
class Problems:
    """Why machines cannot have namespaces here, and why their connections cannot be watched."""

    namespaces: str | None
    watch: str | None


async def find_problems() -> Problems:
    """What this computer does not support; None for what it does."""
    with tempfile.TemporaryDirectory(prefix="tpuctl-probe-") as folder:
        view = View(writable=(folder,), temporary=folder, hostname="probe", is_watched=True)
        try:
            init = await Init.start(view)
        except MachineError as problem:
            return Problems(str(problem), str(problem))
        await init.stop(0)
    return Problems(None, init.watch_problem)
