"""A `tpuctl` program that runs in forks of a server with all modules loaded, to start faster.

The program passes its arguments, folder, environment and standard streams to the server.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["fast_programs", "real_programs"]

_CLIENT = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    request = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(server, [len(request).to_bytes(4, "big")], [0, 1, 2])
    server.sendall(request)
    answer = server.recv(4)
sys.exit(int.from_bytes(answer, "big") if answer else 70)
"""


@contextlib.contextmanager
def fast_programs(folder: Path) -> Iterator[Path]:
    """A folder with a `tpuctl` that starts immediately."""
    folder.mkdir(parents=True)
    address = str(folder / "socket")
    _write(folder / "tpuctl", _CLIENT.format(python=sys.executable, address=address))
    with subprocess.Popen([sys.executable, __file__, address], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        try:
            yield folder
        finally:
            server.terminate()


@contextlib.contextmanager
def real_programs(folder: Path) -> Iterator[Path]:
    """A folder with the `tpuctl` that users have."""
    folder.mkdir(parents=True)
    _write(folder / "tpuctl", f'#!/bin/sh\nexec {sys.executable} -m tpuctl "$@"\n')
    yield folder


def _write(path: Path, text: str) -> None:
    path.write_text(text, "utf-8")
    path.chmod(0o755)


def _serve(address: str) -> None:
    from tests.support import forked_cli  # loads the modules that commands need

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen(16)
        print("ready", flush=True)
        while True:
            connection, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _handle(connection, forked_cli.main)
            connection.close()


def _handle(connection: socket.socket, main: object) -> None:
    size, files, _, _ = socket.recv_fds(connection, 4, 3)
    with connection.makefile("rb") as stream:
        arguments, folder, environment = json.loads(stream.read(int.from_bytes(size, "big")))
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        connection.sendall((code if code >= 0 else 128 - code).to_bytes(4, "big"))
        os._exit(0)
    connection.close()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    for number, name in ((0, "stdin"), (1, "stdout"), (2, "stderr")):  # recreated, as at startup
        mode = "w" if number else "r"
        stream = open(number, mode, 1, encoding="utf-8", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["tpuctl", *arguments]
    assert callable(main)
    main()


if __name__ == "__main__":
    _serve(sys.argv[1])
