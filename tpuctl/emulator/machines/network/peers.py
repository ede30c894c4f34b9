"""The user at the other end of a loopback connection.

Every user of a computer can connect to its loopback addresses. Linux reports the user of each
connection; other systems do not, and there every user is accepted.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
import struct
import sys
from pathlib import Path
from typing import Any

# Connection tables: local address, remote address, …, user (proc_pid_net(5)). Java programs use
# IPv6 sockets for IPv4 connections.
TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
LOCAL, REMOTE, USER = 1, 2, 7
# A query for one connection (sock_diag(7)), since the kernel takes milliseconds to write a table.
# Query: length, type, flags; family, protocol, states; ports and addresses of both ends, interface,
# cookie. Answer: its type, the remote port, the user.
QUERY = struct.Struct("=IHH8x BB2xI 2s2s16s16s I8s")
ANSWER = struct.Struct("=4xH10x 6x2s44x 12xI")
NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST = 4, 20, 1
ALL_STATES, ANY_COOKIE = 0xFFFFFFFF, b"\xff" * 8


def is_other_user(transport: asyncio.BaseTransport) -> bool:
    """Whether an accepted connection comes from another user than the server's."""
    near: Any = transport.get_extra_info("sockname")
    far: Any = transport.get_extra_info("peername")
    if near is None or far is None:
        return True  # already closed
    return not is_same_user(near[:2], far[:2])


def is_same_user(near: tuple[str, int], far: tuple[str, int]) -> bool:
    """Whether this user opened the connection from `far` to `near`, both on this computer.

    True where the system does not report it.
    """
    if not Path(TABLES[0]).exists():
        return True
    user = _query_user(near, far)
    if user is not None:
        return user == os.geteuid()
    for table, family in zip(TABLES, (socket.AF_INET, socket.AF_INET6), strict=True):
        ends = _kernel_format(far, family), _kernel_format(near, family)
        try:
            lines = Path(table).read_text("ascii").splitlines()
        except FileNotFoundError:  # no IPv6
            continue
        for line in lines:
            fields = line.split()
            if (fields[LOCAL], fields[REMOTE]) == ends:
                return int(fields[USER]) == os.geteuid()
    return False


def _query_user(near: tuple[str, int], far: tuple[str, int]) -> int | None:
    """The user of the socket at `far`; None if the kernel does not find it, or has no sock_diag."""
    ends = [ipaddress.ip_address(host) for host, _ in (far, near)]
    ports = [port.to_bytes(2, "big") for _, port in (far, near)]
    family = socket.AF_INET if ends[0].version == 4 else socket.AF_INET6
    query = QUERY.pack(
        *(QUERY.size, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST),
        *(family, socket.IPPROTO_TCP, ALL_STATES),
        *(*ports, *(address.packed for address in ends), 0, ANY_COOKIE),
    )
    with contextlib.suppress(OSError, struct.error):
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as kernel:
            kernel.send(query)
            kind, remote_port, user = ANSWER.unpack_from(kernel.recv(1 << 12))
        # Without such a connection, the kernel reports a socket that listens at `far`.
        if kind == SOCK_DIAG_BY_FAMILY and remote_port == ports[1]:
            return int(user)
    return None


def _kernel_format(endpoint: tuple[str, int], family: socket.AddressFamily) -> str:
    """An address as in the kernel's tables: 32-bit words in native byte order."""
    host, port = endpoint
    address = ipaddress.ip_address(host)
    packed = address.packed
    if family == socket.AF_INET6 and address.version == 4:
        packed = ipaddress.IPv6Address(f"::ffff:{host}").packed
    words = (packed[at : at + 4] for at in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words) + f":{port:04X}"
