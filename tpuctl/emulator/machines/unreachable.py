"""An address at which nobody answers any more, as that of a machine whose host has failed."""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Iterable

import asyncssh

__all__ = ["UnreachableAddress"]

_MAX_PROBES = 16
_PROBE_MILLISECONDS = 50


class UnreachableAddress:
    """Takes the places of those who listened and of those who were connected, and says nothing.

    Who connects waits until they give up: Linux drops what comes to a listener whose queue is
    full, as packets to a dead machine are dropped. Elsewhere they connect and hear nothing.
    """

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    def hold(self, connections: Iterable[asyncssh.SSHServerConnection]) -> None:
        """Let connections live on without anybody at this end; their servers are told they ended.

        The kernel still takes what is sent to them.
        """
        for connection in list(connections):
            open_socket = connection.get_extra_info("socket")
            if open_socket is not None:
                with contextlib.suppress(OSError):  # it is closed already
                    self._sockets.append(open_socket.dup())
            connection.abort()

    def occupy(self, address: str, port: int) -> None:
        """Listen where somebody did, and never answer. OSError if somebody still does."""
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
        """Give up the places; connections that were kept are reset."""
        for held_socket in self._sockets:
            held_socket.close()
        self._sockets.clear()


def _is_connected(probe: socket.socket) -> bool:
    """Whether a place in the queue was left for it: on loopback that shows at once."""
    poll = select.poll()
    poll.register(probe, select.POLLOUT)
    return bool(poll.poll(_PROBE_MILLISECONDS))
