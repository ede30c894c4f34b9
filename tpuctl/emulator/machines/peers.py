"""Whose program is at the other end of a connection on loopback.

Any user of a computer can connect to what listens on its loopback. Linux reports for each
connection which user made it; other systems do not, and there every user is accepted.
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

# Tables of connections: local address, remote address, …, user (proc_pid_net(5)). Programs of Java
# make sockets of IPv6 that carry IPv4.
TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
LOCAL, REMOTE, USER = 1, 2, 7


def is_other_user(transport: asyncio.BaseTransport) -> bool:
    """Whether another user than the server's own made the connection that arrived here."""
    near: Any = transport.get_extra_info("sockname")
    far: Any = transport.get_extra_info("peername")
    if near is None or far is None:
        return True  # it is over already
    return not is_same_user(near[:2], far[:2])


def is_same_user(near: tuple[str, int], far: tuple[str, int]) -> bool:
    """Whether this user made the connection from `far` to `near`, both addresses of this computer.

    True where the system does not report it.
    """
    if not Path(TABLES[0]).exists():
        return True
    for table, family in zip(TABLES, (socket.AF_INET, socket.AF_INET6), strict=True):
        ends = _kernel_format(far, family), _kernel_format(near, family)
        try:
            lines = Path(table).read_text("ascii").splitlines()
        except FileNotFoundError:  # a system without IPv6
            continue
        for line in lines:
            fields = line.split()
            if (fields[LOCAL], fields[REMOTE]) == ends:
                return int(fields[USER]) == os.geteuid()
    return False


def _kernel_format(endpoint: tuple[str, int], family: socket.AddressFamily) -> str:
    """As the kernel's tables write it: words of 32 bits in the computer's own byte order."""
    host, port = endpoint
    address = ipaddress.ip_address(host)
    packed = address.packed
    if family == socket.AF_INET6 and address.version == 4:
        packed = ipaddress.IPv6Address(f"::ffff:{host}").packed
    words = (packed[at : at + 4] for at in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words) + f":{port:04X}"
