"""Programs in processes forked from one that has loaded their modules: only loading is saved.

A process that has loaded them calls `serve`, which forks one for each client. Folder, environment,
standard streams, signals, exit code and death are those of an ordinary program; only its terminal
is not its controlling terminal. Other Pythons import this module, too: it needs only the standard
library.
"""

from __future__ import annotations

import gc
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
CLIENT = Path(__file__).with_name("forking_client.py")


def client_command(address: str) -> list[str]:
    """The command that stands for the program; its arguments follow."""
    return [sys.executable, "-IS", str(CLIENT), address]


@contextmanager
def forking_server(
    command: Sequence[str | Path], environment: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Start a process that calls `serve` with its last argument, the address, which is added here.

    Yields the address; the process ends with the context, or with this process. Raises
    RuntimeError, with its messages, if it ends before.
    """
    with TemporaryDirectory(prefix="forking-") as folder:
        address = str(Path(folder, "socket"))  # short, as sockets' paths have to be
        with subprocess.Popen(
            [*command, address],
            cwd=ROOT,  # where Python finds `tests`
            env=environment,
            # All pipes: what Python notes of its streams, as that they cannot seek, is inherited.
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as server:
            assert server.stdout is not None
            assert server.stderr is not None
            if server.stdout.readline() != b"ready\n":
                raise RuntimeError(server.stderr.read().decode())
            try:
                yield address
            finally:
                server.kill()


def serve(
    address: str, *, kill_group: bool = False, refresh: Callable[[], None] = int
) -> list[str]:
    """Fork a process for each client until standard input is closed.

    Returns only in these processes, with the arguments. `refresh` is called before each fork. A
    client that is killed takes its process with it, with `kill_group` also what that has started.
    """
    wakeup, signaled = socket.socketpair()
    signaled.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(signaled.fileno(), warn_on_full_buffer=False)
    clients: dict[int, socket.socket] = {}
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    selector = selectors.DefaultSelector()
    for source in (listener, wakeup, sys.stdin):
        selector.register(source, selectors.EVENT_READ)
    gc.collect()
    gc.freeze()
    print("ready", flush=True)
    while True:
        for key, _ in selector.select():
            if key.fileobj is sys.stdin:
                os._exit(0)
            if key.fileobj is wakeup:
                wakeup.recv(4096)
                _report_ended(clients, selector)
            elif key.fileobj is not listener:  # the client was killed
                (os.killpg if kill_group else os.kill)(key.data, signal.SIGKILL)
                selector.unregister(key.fileobj)
            else:
                client, _ = listener.accept()
                request = _receive(client)
                refresh()
                pid = os.fork()
                if not pid:
                    if kill_group:
                        os.setsid()
                    signal.set_wakeup_fd(-1)
                    for opened in (*clients.values(), client, listener, wakeup, signaled, selector):
                        opened.close()
                    return _enter(request)
                for descriptor in request.streams:
                    os.close(descriptor)
                client.sendall(pid.to_bytes(4, "big"))
                clients[pid] = client
                selector.register(client, selectors.EVENT_READ, pid)


class _Request(NamedTuple):
    arguments: list[str]
    folder: str
    environment: dict[bytes, bytes]
    streams: list[int]


def _receive(client: socket.socket) -> _Request:
    size, streams, _, _ = socket.recv_fds(client, 4, 3)
    with client.makefile("rb") as stream:
        number, *texts = stream.read(int.from_bytes(size, "big")).split(b"\0")
    folder, *arguments = map(os.fsdecode, texts[: int(number)])
    variables = (text.partition(b"=") for text in texts[int(number) :])
    return _Request(arguments, folder, {name: value for name, _, value in variables}, streams)


def _report_ended(clients: dict[int, socket.socket], selector: selectors.BaseSelector) -> None:
    while clients:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with clients.pop(pid) as client:
            if client in selector.get_map():
                selector.unregister(client)
                client.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "big", signed=True))


def _enter(request: _Request) -> list[str]:
    """Make this process look as if it had been started as requested."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, descriptor in enumerate(request.streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request.folder)
    os.environ.clear()
    os.environb.update(request.environment)
    return request.arguments
