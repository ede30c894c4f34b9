"""A machine's first process: holds its namespaces and starts, reaps and ends its processes.

Runs as a program of its own, under `python -I -S`, with the standard library alone. Its argument
is the descriptor of a stream socket; with `fork-server` after it, that of a socket over which such
sockets come, for each of which one such process is forked. The first line read from a stream is
the configuration; every further line is a request, every line written is an event, all of them
JSON objects:

    {"do": "spawn", "id", "argv", "name", "env", "cwd", "terminal"}
        with stdin, stdout and stderr attached, or none and "terminal": [rows, columns];
        -> {"started": id, "pid", "terminal"}, the terminal's other end attached if there is one;
        later {"exited": pid, "status"} or {"exited": pid, "signal", "core"}
    {"do": "signal", "pid", "signal"}    to the process group that a spawn began
    {"do": "connect", "id", "address", "port"}    in a network of the machine's own
        -> {"connected": id} with the socket attached, or with "error"
    {"do": "halt", "grace"}              the stream ends when no process is left

A machine with a network of its own tells {"listening": [address, port]}, a socket attached to each,
before it is ready. The end of the stream, whoever causes it, ends every process of the machine.
"""

# Importing pathlib would make the start of a machine noticeably slower.
# ruff: noqa: PTH110, PTH119, PTH120, PTH123, PTH208

from __future__ import annotations

import errno
import fcntl
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
import termios
import time
from typing import Any, NoReturn

__all__ = ["main"]

LINUX = sys.platform == "linux"


class Init:
    """Serves the control socket until it ends."""

    def __init__(self, control: socket.socket, *, namespaced: bool) -> None:
        self.control = control
        self.namespaced = namespaced
        self.buffer = b""
        self.attached: list[int] = []
        self.groups: set[int] = set()  # process groups begun here
        self.deadline: float | None = None  # set by halt
        self.network: Any = None  # the module, for a machine with a network of its own

    def first_line(self) -> dict[str, Any]:
        while b"\n" not in self.buffer:
            if not self.receive():
                os._exit(0)
        return self.next_request() or {}

    def receive(self) -> bool:
        try:
            data, descriptors, _, _ = socket.recv_fds(self.control, 1 << 16, 4)
        except ConnectionError:
            return False
        self.attached += descriptors
        self.buffer += data
        return bool(data)

    def next_request(self) -> dict[str, Any] | None:
        line, newline, rest = self.buffer.partition(b"\n")
        if not newline:
            return None
        self.buffer = rest
        request: dict[str, Any] = json.loads(line)
        return request

    def send_event(self, event: dict[str, Any], descriptor: int | None = None) -> None:
        line = json.dumps(event).encode() + b"\n"
        try:
            if descriptor is not None:
                sent_bytes = socket.send_fds(self.control, [line], [descriptor])
                line = line[sent_bytes:]
            self.control.sendall(line)
        except ConnectionError:
            self.exit()

    def serve(self) -> NoReturn:
        wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC) if LINUX else _plain_pipe()
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        waiter = select.poll()
        waiter.register(self.control, select.POLLIN)
        waiter.register(wake, select.POLLIN)
        while True:
            pause = None if self.deadline is None else 50
            for descriptor, _ in waiter.poll(pause):
                if descriptor == wake:
                    os.read(wake, 4096)
                elif not self.receive():
                    self.exit()
            while request := self.next_request():
                self.handle(request)
            self.reap()
            if self.deadline is not None and (
                time.monotonic() > self.deadline or not self.has_processes()
            ):
                self.exit()

    def handle(self, request: dict[str, Any]) -> None:
        if request["do"] == "spawn":
            self.spawn(request)
        elif request["do"] == "signal":
            if request["pid"] in self.groups:
                _signal_group(request["pid"], request["signal"])
        elif request["do"] == "connect":
            self.connect(request)
        elif request["do"] == "halt":
            self.deadline = time.monotonic() + request["grace"]
            # All at once: so does systemd with what was begun over SSH, since logind makes the
            # scope of a session with SendSIGHUP (logind-dbus.c, manager_start_scope).
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCONT):
                self.signal_all(number)

    def spawn(self, request: dict[str, Any]) -> None:
        files: list[int] = []
        master = None
        if request["terminal"]:
            master, terminal = os.openpty()
            rows, columns = request["terminal"]
            fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            files = [terminal, terminal, terminal]
        else:  # in order: one read may bring the descriptors of a later request too
            files, self.attached = self.attached[:3], self.attached[3:]
        child = os.fork()
        if child == 0:
            _become(request, files, controlling=master is not None)
        for descriptor in set(files):
            os.close(descriptor)
        self.groups.add(child)
        answer = {"started": request["id"], "pid": child, "terminal": master is not None}
        self.send_event(answer, master)
        if master is not None:
            os.close(master)

    def open_network(self, places: list[list[Any]]) -> None:
        """Make the machine's own network usable, and hand over listeners in it."""
        self.network.bring_up()
        for address, port in places:
            with self.network.listen(address, port) as listener:
                self.send_event({"listening": [address, port]}, listener.fileno())

    def connect(self, request: dict[str, Any]) -> None:
        answer = {"connected": request["id"]}
        try:
            connection = self.network.connect(request["address"], request["port"])
        except OSError as problem:
            self.send_event({**answer, "error": str(problem)})
            return
        with connection:
            self.send_event(answer, connection.fileno())

    def reap(self) -> None:
        while True:
            try:
                child, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if child == 0:
                return
            if child not in self.groups:
                continue  # an orphan that came to its machine's first process
            self.groups.discard(child)
            if os.WIFSIGNALED(status):
                core = os.WCOREDUMP(status)
                self.send_event({"exited": child, "signal": os.WTERMSIG(status), "core": core})
            else:
                self.send_event({"exited": child, "status": os.WEXITSTATUS(status)})

    def processes(self) -> list[int]:
        """All processes of the machine but this one, where they can be told."""
        if not LINUX:
            return []
        parents: dict[int, int] = {}
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as file:
                        fields = file.read().rpartition(")")[2].split()
                except OSError:
                    continue
                if fields[0] != "Z":
                    parents[int(entry)] = int(fields[1])
        descendants = {os.getpid()}
        while (
            grown := {pid for pid, parent in parents.items() if parent in descendants} - descendants
        ):
            descendants |= grown
        return sorted(descendants - {os.getpid()})

    def has_processes(self) -> bool:
        return bool(self.processes()) if LINUX else bool(self.groups)

    def signal_all(self, number: int) -> None:
        for pid in self.processes():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
        if not LINUX:
            for group in self.groups:
                _signal_group(group, number)

    def exit(self) -> NoReturn:
        """End everything; with a process namespace the kernel does it when this one is gone."""
        if not self.namespaced:
            for _ in range(100):  # a process may be starting others while it is being ended
                self.signal_all(signal.SIGKILL)
                try:
                    while os.waitpid(-1, os.WNOHANG)[0]:
                        pass
                except ChildProcessError:
                    break
                time.sleep(0.01)
        os._exit(0)


def _plain_pipe() -> tuple[int, int]:
    ends = os.pipe()
    for descriptor in ends:
        os.set_blocking(descriptor, False)
    return ends


def _signal_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return


def _become(request: dict[str, Any], files: list[int], *, controlling: bool) -> NoReturn:
    """In the fork: turn into the program asked for."""
    try:
        os.setsid()
        if controlling:
            fcntl.ioctl(files[0], termios.TIOCSCTTY, 0)
        moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 10) for descriptor in files]
        for number, descriptor in enumerate(moved):
            os.dup2(descriptor, number, inheritable=True)
        os.closerange(3, 1 << 16)
        # Python ignores these two; a program that is started expects the system's defaults.
        for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(ignored, signal.SIG_DFL)
        for caught in (signal.SIGCHLD, signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(caught, signal.SIG_DFL)
        os.umask(0o022)
        os.chdir(request["cwd"])
        program, *_ = argv = request["argv"]
        name = request.get("name") or os.path.basename(program)
        os.execve(program, [name, *argv[1:]], request["env"])
    except OSError as problem:
        os.write(2, f"{request['argv'][0]}: {problem.strerror}\n".encode())
    os._exit(127 if os.path.exists(request["cwd"]) else 126)


def main(descriptor: int) -> None:
    # Neighbors in this folder, where an isolated program does not look by itself.
    sys.path.insert(0, os.path.dirname(__file__))
    kernel: Any = importlib.import_module("sandbox_view")
    control = socket.socket(fileno=descriptor)
    control.set_inheritable(False)
    init = Init(control, namespaced=False)
    view = init.first_line()["view"]
    if view is None:
        kernel.adopt_orphans()  # so that none of them escapes
        init.send_event({"ready": True})
        init.serve()
    # Without namespaces this would leave the others behind: there the end of the stream serves.
    kernel.die_with_parent()
    places = view["network"]
    try:
        kernel.enter_user_namespace(view["user"], own_network=places is not None)
        child = os.fork()
    except OSError as problem:
        init.send_event({"failed": str(problem)})
        return
    if child:
        control.close()
        os.waitpid(child, 0)
        return
    kernel.die_with_parent()
    try:
        if places is not None:
            init.network = importlib.import_module("sandbox_network")
            init.open_network(places)
        kernel.build_view(view)
        kernel.drop_privileges()
    except OSError as problem:
        if problem.errno == errno.EINVAL and problem.filename is None:
            problem = OSError(problem.errno, f"{problem.strerror} (an old kernel?)")
        init.send_event({"failed": str(problem)})
        return
    init.namespaced = True
    init.send_event({"ready": True})
    init.serve()


def serve_forks(descriptor: int) -> None:
    """Fork one of these for each socket that comes, and answer with its process id."""
    sys.path.insert(0, os.path.dirname(__file__))
    for name in ("sandbox_view", "sandbox_network"):
        importlib.import_module(name)
    control = socket.socket(fileno=descriptor)
    control.set_inheritable(False)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how they ended
    gc.freeze()  # what all of them share stays shared
    while True:
        _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not descriptors:
            return
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            control.close()
            os.setsid()
            main(descriptors[0])
            os._exit(0)
        os.close(descriptors[0])
        control.send(struct.pack("i", child))


if __name__ == "__main__":
    (serve_forks if sys.argv[2:] == ["fork-server"] else main)(int(sys.argv[1]))
