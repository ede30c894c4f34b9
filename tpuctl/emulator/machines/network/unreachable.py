"""An unresponsive address, like that of a machine whose host has failed."""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncssh

_MAX_PROBES = 16
_PROBE_MILLISECONDS = 50


class UnreachableAddress:
    """Takes over listeners and connections, and never answers.

    New connections time out: Linux drops packets to a listener whose backlog is full. On other
    systems they are accepted and never answered.
    """

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    def hold(self, connections: Iterable[asyncssh.SSHServerConnection]) -> None:
        """Keep connections open without a server; for their servers they are closed.

        The kernel still acknowledges data that is sent to them.
        """
        for connection in list(connections):
            open_socket = connection.get_extra_info("socket")
            if open_socket is not None:
                with contextlib.suppress(OSError):  # already closed
                    self._sockets.append(open_socket.dup())
            connection.abort()

    def occupy(self, address: str, port: int) -> None:
        """Listen on the address and never answer. OSError if it is still in use."""
        listener = socket.socket()
        self._sockets.append(listener)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(0)
        for _ in range(_MAX_PROBES):
            probe = socket.socket()
            self._sockets.append(probe)
            probe.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                probe.connect((address, port))
            if not _is_connected(probe):
                break

    def close(self) -> None:
        """Release the address; held connections are reset."""
        for held_socket in self._sockets:
            held_socket.close()
        self._sockets.clear()


def _is_connected(probe: socket.socket) -> bool:
    """Whether the backlog had room for it: on loopback this is known immediately."""
    poll = select.poll()
    poll.register(probe, select.POLLOUT)
    return bool(poll.poll(_PROBE_MILLISECONDS))
