"""Ports of this machine that only its own programs reach."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator

from tpuctl.errors import Usage

LOOPBACK = "127.0.0.1"
MAX_PORT_TRIES = 20  # ports tried if the first is in use
FIRST_UNPRIVILEGED_PORT = 1024  # lower ports may require root


def listen(port: int | None, *, first: int, where: str, hint: str) -> socket.socket:
    """A socket that listens on the port, or without one on the next free port from `first` on.

    Raises Usage, with the option `where` and the hint, if the port is not available.
    """
    for candidate in _candidates(first) if port is None else (port,):
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((LOOPBACK, candidate))
            listener.listen()
        except OSError as error:
            listener.close()
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            if port is not None:
                reason = "is in use" if error.errno == errno.EADDRINUSE else "requires root"
                raise Usage(
                    "Port not available",
                    f"port {port} of this machine {reason}",
                    hint=hint,
                    where=where,
                ) from error
        else:
            return listener
    raise AssertionError("port 0 is always free")


def _candidates(first: int) -> Iterator[int]:
    yield from range(first, min(first + MAX_PORT_TRIES, 1 << 16))
    yield 0
