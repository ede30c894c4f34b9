"""A machine's init process: holds its namespaces and starts, reaps and kills its processes.

A standalone program, run with `python -I -S`, that uses only the standard library. Its argument is
the descriptor of a stream socket; followed by `fork-server`, that of a socket that receives such
sockets, and one init process is forked for each. The first line of a stream is the configuration;
every further line read is a request, every line written is an event, all of them JSON objects:

    {"action": "spawn", "id", "argv", "name", "env", "cwd", "terminal"}
        with stdin, stdout and stderr attached, or none and "terminal": [rows, columns];
        -> {"started": id, "pid", "terminal"}, the terminal's other end attached if there is one;
        later {"exited": pid, "status"} or {"exited": pid, "signal", "core"}
    {"action": "signal", "pid", "signal"}    to the process group of a spawned process
    {"action": "connect", "id", "address", "port"}    in the machine's network namespace
        -> {"connected": id} with the socket attached, or with "error"
    {"action": "stop", "grace"}              the stream ends when no process is left

A machine with a network namespace sends {"listening": [address, port]}, each with a socket
attached, before it is ready; a watched one {"watched": true} with the notifications about its
connections attached, or {"unwatched": reason}. When the stream ends, every process of the machine
is killed.
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

LINUX = sys.platform == "linux"


class Init:
    """Serves the control socket until it ends."""

    def __init__(self, control: socket.socket, *, namespaced: bool) -> None:
        self.control = control
        self.namespaced = namespaced
        self.buffer = b""
        self.attached: list[int] = []
        self.groups: set[int] = set()  # process groups started here
        self.deadline: float | None = None  # set by stop
        self.network: Any = None  # the module, for a machine with a network namespace

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
        if request["action"] == "spawn":
            self.spawn(request)
        elif request["action"] == "signal":
            if request["pid"] in self.groups:
                _signal_group(request["pid"], request["signal"])
        elif request["action"] == "connect":
            self.connect(request)
        elif request["action"] == "stop":
            self.deadline = time.monotonic() + request["grace"]
            # All three, as systemd does for SSH sessions: logind creates their scopes with
            # SendSIGHUP (logind-dbus.c, manager_start_scope).
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
        """Bring up the machine's network namespace, and send listeners in it."""
        self.network.bring_up()
        for address, port in places:
            with self.network.listen(address, port) as listener:
                self.send_event({"listening": [address, port]}, listener.fileno())

    def watch_connections(self, connections: Any) -> None:
        """Let the server decide about the connections of all later processes."""
        try:
            notifications = connections.watch_connections()
        except OSError as problem:
            self.send_event({"unwatched": problem.strerror})
            return
        self.send_event({"watched": True}, notifications)
        os.close(notifications)

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
                continue  # an orphan that was reparented to init
            self.groups.discard(child)
            if os.WIFSIGNALED(status):
                core = os.WCOREDUMP(status)
                self.send_event({"exited": child, "signal": os.WTERMSIG(status), "core": core})
            else:
                self.send_event({"exited": child, "status": os.WEXITSTATUS(status)})

    def processes(self) -> list[int]:
        """All other processes of the machine; only on Linux."""
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
        """Kill everything; in a PID namespace the kernel does it when init exits."""
        if not self.namespaced:
            for _ in range(100):  # a process may start others while it is being killed
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
    """In the fork: execute the requested program."""
    try:
        os.setsid()
        if controlling:
            fcntl.ioctl(files[0], termios.TIOCSCTTY, 0)
        moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 10) for descriptor in files]
        for number, descriptor in enumerate(moved):
            os.dup2(descriptor, number, inheritable=True)
        os.closerange(3, 1 << 16)
        # Python ignores these two; programs expect the default handlers.
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
    # Modules of this folder, which python -I does not search.
    sys.path.insert(0, os.path.dirname(__file__))
    kernel: Any = importlib.import_module("sandbox_view")
    control = socket.socket(fileno=descriptor)
    control.set_inheritable(False)
    init = Init(control, namespaced=False)
    view = init.first_line()["view"]
    if view is None:
        kernel.adopt_orphans()  # so that none escapes
        init.send_event({"ready": True})
        init.serve()
    # Without namespaces this would leave other processes running: there `exit` kills them.
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
    connections = importlib.import_module("sandbox_connections")  # the machine may not see it
    try:
        if places is not None:
            init.network = importlib.import_module("sandbox_network")
            init.open_network(places)
        kernel.build_view(view)
        kernel.drop_privileges()
        if view["is_watched"]:
            init.watch_connections(connections)
    except OSError as problem:
        if problem.errno == errno.EINVAL and problem.filename is None:
            problem = OSError(problem.errno, f"{problem.strerror} (an old kernel?)")
        init.send_event({"failed": str(problem)})
        return
    init.namespaced = True
    init.send_event({"ready": True})
    init.serve()


def serve_forks(descriptor: int) -> None:
    """Fork an init process for each received socket, and answer with its process id."""
    sys.path.insert(0, os.path.dirname(__file__))
    for name in ("sandbox_view", "sandbox_network", "sandbox_connections"):
        importlib.import_module(name)
    control = socket.socket(fileno=descriptor)
    control.set_inheritable(False)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are reaped automatically
    gc.freeze()  # keep memory shared after fork
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
