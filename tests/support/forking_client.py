"""A program that runs in a process forked by the server at this address.

    python -IS forking_client.py ADDRESS [ARGUMENT]...

Without `json` and `socket`, whose imports would take longer than the rest.
"""

from __future__ import annotations

import _signal
import _socket
import array
import os
import sys


def main(address: str, arguments: list[str]) -> int:
    """The exit code of the forked process, negative for the signal that ended it."""
    server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    server.connect(address)
    variables = [name + b"=" + value for name, value in os.environb.items()]
    words = [os.fsencode(word) for word in [os.getcwd(), *arguments]]  # noqa: PTH109
    request = bytes(1).join([b"%d" % len(words), *words, *variables])
    streams = array.array("i", [0, 1, 2])
    size = len(request).to_bytes(4, "big")
    server.sendmsg([size], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
    server.sendall(request)
    pid = int.from_bytes(server.recv(4), "big")
    for number in (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP):
        _signal.signal(number, lambda number, frame: os.kill(pid, number))
    return int.from_bytes(server.recv(4), "big", signed=True)


if __name__ == "__main__":
    code = main(sys.argv[1], sys.argv[2:])
    if code < 0:
        _signal.signal(-code, _signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
