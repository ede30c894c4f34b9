"""The user at the other end of a loopback connection.

Every user of a computer can connect to its loopback addresses. Linux reports the user of each
connection; other systems do not, and there every user is accepted.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import sys
from pathlib import Path
from typing import Any

__all__ = ["is_other_user", "is_same_user"]

# Connection tables: local address, remote address, …, user (proc_pid_net(5)). Java programs use
# IPv6 sockets for IPv4 connections.
TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
LOCAL, REMOTE, USER = 1, 2, 7


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


def _kernel_format(endpoint: tuple[str, int], family: socket.AddressFamily) -> str:
    """An address as in the kernel's tables: 32-bit words in native byte order."""
    host, port = endpoint
    address = ipaddress.ip_address(host)
    packed = address.packed
    if family == socket.AF_INET6 and address.version == 4:
        packed = ipaddress.IPv6Address(f"::ffff:{host}").packed
    words = (packed[at : at + 4] for at in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words) + f":{port:04X}"
