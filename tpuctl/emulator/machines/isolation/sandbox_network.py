"""A machine's network namespace, isolated from the computer's network: a part of sandbox.py.

It has only a loopback interface. Traffic in and out passes through sockets that are created here
and sent to the server, which forwards them to the computer's network.
"""

from __future__ import annotations

import fcntl
import socket
import struct

SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1
CONNECT_SECONDS = 5.0


def bring_up() -> None:
    """Bring up loopback: in a new network namespace it is down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sH14x", b"lo", 0)
        _, flags = struct.unpack("16sH14x", fcntl.ioctl(control, SIOCGIFFLAGS, request))
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | IFF_UP))


def listen(address: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    listener.listen(128)
    return listener


def connect(address: str, port: int) -> socket.socket:
    """Connect to a port on loopback; succeeds or fails immediately."""
    connection = socket.create_connection((address, port), CONNECT_SECONDS)
    connection.settimeout(None)
    return connection
