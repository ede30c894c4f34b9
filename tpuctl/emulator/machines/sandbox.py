"""A machine's first process: holds its namespaces and starts, reaps and ends its processes.

Runs as a program of its own, under `python -I -S`, with the standard library alone. Its one
argument is the descriptor of a stream socket. The first line read there is the configuration;
every further line is a request, every line written is an event, all of them JSON objects:

    {"do": "spawn", "id", "argv", "name", "env", "cwd", "terminal"}
        with stdin, stdout and stderr attached, or none and "terminal": [rows, columns];
        -> {"started": id, "pid", "terminal"}, the terminal's other end attached if there is one;
        later {"exited": pid, "status"} or {"exited": pid, "signal", "core"}
    {"do": "signal", "pid", "signal"}    to the process group that a spawn began
    {"do": "halt", "grace"}              the stream ends when no process is left

The end of the stream, whoever causes it, ends every process of the machine.
"""

# Importing pathlib would make the start of a machine noticeably slower.
# ruff: noqa: PTH102, PTH103, PTH110, PTH112, PTH114, PTH116, PTH119, PTH120, PTH123, PTH208
# ruff: noqa: PTH211

from __future__ import annotations

import ctypes
import errno
import fcntl
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

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID = 0x10000000, 0x20000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
SYS_MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE = 442, -100, 0x8000
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID = 1, 2
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 24, 36, 38
LINUX = sys.platform == "linux"
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    result = libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3])
    check(result, f"mount {target}")


def set_mount(path: str, *, add: int = 0, clear: int = 0, flags: int = 0) -> None:
    attributes = struct.pack("QQQQ", add, clear, 0, 0)
    result = libc.syscall(
        ctypes.c_long(SYS_MOUNT_SETATTR),
        ctypes.c_int(AT_FDCWD),
        ctypes.c_char_p(os.fsencode(path)),
        ctypes.c_uint(flags),
        ctypes.c_char_p(attributes),
        ctypes.c_size_t(len(attributes)),
    )
    check(result, f"mount_setattr {path}")


def bind(descriptor: int, target: str, *, writable: bool) -> None:
    """Mount what the descriptor names at the target, made if it is not there."""
    source = f"/proc/self/fd/{descriptor}"
    if not os.path.lexists(target):
        if os.path.isdir(source):
            os.makedirs(target, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    mount(source, target, None, MS_BIND | MS_REC)
    attribute = {"clear": MOUNT_ATTR_RDONLY} if writable else {"add": MOUNT_ATTR_RDONLY}
    set_mount(target, **attribute)


def same_file(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.stat(descriptor), os.stat(path))
    except OSError:
        return False


def enter_user_namespace() -> None:
    """Leave the system's namespaces; whoever forks next has the new process namespace."""
    user, group = os.getuid(), os.getgid()
    spaces = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS
    check(libc.unshare(spaces), "unshare")
    die_with_parent()  # forgotten by the kernel when the user namespace changes
    for file, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        with open(f"/proc/self/{file}", "w", encoding="ascii") as map_:
            map_.write(text)


def build_view(view: dict[str, Any]) -> None:
    """Make the machine's own view of the file system, as its first process.

    Everything is read-only but `writable` and what is mounted afresh; `hidden` folders are
    empty but for what `readable` and `writable` bring back; `overlaid` maps path to file.
    """
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    resolver = os.path.realpath("/etc/resolv.conf")
    readable = [*view["readable"], resolver, "/run/current-system"]
    kept = [(path, False) for path in readable] + [(path, True) for path in view["writable"]]
    # Opened before anything is covered: a covered folder can still be mounted elsewhere.
    opened = sorted(
        (path, os.open(path, os.O_PATH | os.O_CLOEXEC), writable)
        for path, writable in kept
        if os.path.exists(path)
    )
    overlaid = [
        (target, os.open(source, os.O_PATH | os.O_CLOEXEC))
        for target, source in view["overlaid"].items()
        if os.path.exists(target)
    ]
    devices = [(name, os.open(f"/dev/{name}", os.O_PATH | os.O_CLOEXEC)) for name in DEVICES]
    temporary = os.open(view["temporary"], os.O_PATH | os.O_CLOEXEC)

    set_mount("/", add=MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID, flags=AT_RECURSIVE)
    for path in ("/tmp", "/var/tmp"):
        if os.path.isdir(path) and not os.path.islink(path):
            bind(temporary, path, writable=True)
    hidden = [path for path in ["/run", *view["hidden"]] if os.path.isdir(path)]
    for path in hidden:
        mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1m")
    for path, descriptor, writable in opened:
        if writable or not same_file(descriptor, path):
            bind(descriptor, path, writable=writable)
    for path in hidden:
        set_mount(path, add=MOUNT_ATTR_RDONLY)
    for path, descriptor in overlaid:
        bind(descriptor, path, writable=False)
    build_devices(devices)
    # A fresh /proc shows this machine's processes alone; what it can change of the system is
    # closed, since the kernel checks some of it by user, not by namespace.
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for path in ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus"):
        if os.path.exists(path):
            mount(path, path, None, MS_BIND)
            set_mount(path, add=MOUNT_ATTR_RDONLY)
    name = view["hostname"].encode()
    check(libc.sethostname(name, ctypes.c_size_t(len(name))), "sethostname")
    os.chdir("/")


def build_devices(devices: list[tuple[str, int]]) -> None:
    mount("tmpfs", "/dev", "tmpfs", MS_NOSUID, "mode=755,size=1m")
    for name, descriptor in devices:
        bind(descriptor, f"/dev/{name}", writable=True)
    os.mkdir("/dev/pts")
    mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666")
    os.mkdir("/dev/shm")
    mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
    os.symlink("pts/ptmx", "/dev/ptmx")
    os.symlink("/proc/self/fd", "/dev/fd")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.symlink(f"/proc/self/fd/{number}", f"/dev/{name}")


def drop_privileges() -> None:
    """Give up what the new user namespace granted, for this process and all it starts."""
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    for capability in range(64):
        if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            break  # past the last one that this kernel knows
    header = struct.pack("II", 0x20080522, 0)
    check(libc.capset(header, struct.pack("IIIIII", *[0] * 6)), "capset")


def die_with_parent() -> None:
    if LINUX:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class Init:
    """Serves the control socket until it ends."""

    def __init__(self, control: socket.socket, *, namespaced: bool) -> None:
        self.control = control
        self.namespaced = namespaced
        self.buffer = b""
        self.attached: list[int] = []
        self.groups: set[int] = set()  # process groups begun here
        self.deadline: float | None = None  # set by halt

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

    def tell(self, event: dict[str, Any], descriptor: int | None = None) -> None:
        line = json.dumps(event).encode() + b"\n"
        try:
            if descriptor is not None:
                sent = socket.send_fds(self.control, [line], [descriptor])
                line = line[sent:]
            self.control.sendall(line)
        except ConnectionError:
            self.end()

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
                    self.end()
            while request := self.next_request():
                self.handle(request)
            self.reap()
            if self.deadline is not None and (
                time.monotonic() > self.deadline or not self.has_processes()
            ):
                self.end()

    def handle(self, request: dict[str, Any]) -> None:
        if request["do"] == "spawn":
            self.spawn(request)
        elif request["do"] == "signal":
            if request["pid"] in self.groups:
                _signal_group(request["pid"], request["signal"])
        elif request["do"] == "halt":
            self.deadline = time.monotonic() + request["grace"]
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
        self.tell(answer, master)
        if master is not None:
            os.close(master)

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
                self.tell({"exited": child, "signal": os.WTERMSIG(status), "core": core})
            else:
                self.tell({"exited": child, "status": os.WEXITSTATUS(status)})

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
        ours = {os.getpid()}
        while grown := {pid for pid, parent in parents.items() if parent in ours} - ours:
            ours |= grown
        return sorted(ours - {os.getpid()})

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

    def end(self) -> NoReturn:
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
    control = socket.socket(fileno=descriptor)
    control.set_inheritable(False)
    init = Init(control, namespaced=False)
    view = init.first_line()["view"]
    if view is None:
        if LINUX:  # orphans come here, so that none of them escapes
            libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        init.tell({"ready": True})
        init.serve()
    # Without namespaces this would leave the others behind: there the end of the stream serves.
    die_with_parent()
    try:
        enter_user_namespace()
        child = os.fork()
    except OSError as problem:
        init.tell({"failed": str(problem)})
        return
    if child:
        control.close()
        os.waitpid(child, 0)
        return
    die_with_parent()
    try:
        build_view(view)
        drop_privileges()
    except OSError as problem:
        if problem.errno == errno.EINVAL and problem.filename is None:
            problem = OSError(problem.errno, f"{problem.strerror} (an old kernel?)")
        init.tell({"failed": str(problem)})
        return
    init.namespaced = True
    init.tell({"ready": True})
    init.serve()


if __name__ == "__main__":
    main(int(sys.argv[1]))
