"""Packet filters of single TCP sockets, by which the kernel drops packets silently.

Classic BPF programs, which any user may attach to its sockets (socket(7), SO_ATTACH_FILTER; Linux's
Documentation/networking/filter.rst). Sockets accepted from a listener inherit its filter.
"""

from __future__ import annotations

import ctypes
import socket
import struct
from ipaddress import IPv4Address, IPv4Network

SO_ATTACH_FILTER = 26
LOAD, LOAD_BYTE, AND, JUMP_EQUAL, RETURN = 0x20, 0x30, 0x54, 0x15, 0x06
NETWORK_HEADER = 0xFFF00000  # SKF_NET_OFF: offsets from here are those in the IP header
VERSION, SOURCE, DESTINATION, DESTINATION6 = 0, 12, 16, 24
ACCEPT, DROP = 0xFFFFFFFF, 0

Instruction = tuple[int, int, int, int]  # code, jumps if true and if false, operand


def drop_all(connecting: socket.socket) -> None:
    """Drop all packets to this socket: a connection then times out, as behind a firewall."""
    _attach(connecting, [(RETURN, 0, 0, DROP)])


def restrict_listener(
    listener: socket.socket, address: str, machines: IPv4Network, *, allows_outside: bool
) -> None:
    """Let only machines connect to a machine's `address`, unless others may, too.

    Connections to other addresses in this network, or from outside this computer, are dropped;
    localhost is not restricted.
    """
    destination = int(IPv4Address(address))
    network, mask = int(machines.network_address), 0xFFFF0000
    accept, drop = 14, 15
    outside = accept if allows_outside else drop
    program: list[tuple[int, int, int, int]] = [
        (LOAD_BYTE, 0, 0, NETWORK_HEADER + VERSION),
        (AND, 0, 0, 0xF0),
        (JUMP_EQUAL, 5, 3, 0x40),  # IPv4
        (LOAD, 0, 0, NETWORK_HEADER + DESTINATION6),  # IPv6: ::1, or one from elsewhere
        (JUMP_EQUAL, accept, drop, 0),
        (LOAD, 0, 0, NETWORK_HEADER + DESTINATION),
        (JUMP_EQUAL, 11, 7, destination),
        (AND, 0, 0, mask),
        (JUMP_EQUAL, drop, 9, network),
        (AND, 0, 0, 0xFF000000),
        (JUMP_EQUAL, accept, drop, 0x7F000000),
        (LOAD, 0, 0, NETWORK_HEADER + SOURCE),
        (AND, 0, 0, mask),
        (JUMP_EQUAL, accept, outside, network),
        (RETURN, 0, 0, ACCEPT),
        (RETURN, 0, 0, DROP),
    ]
    _attach(listener, [_relative(index, line) for index, line in enumerate(program)])


def _relative(index: int, instruction: Instruction) -> Instruction:
    """With jumps relative to the next instruction, as the kernel has them."""
    code, if_true, if_false, operand = instruction
    if code != JUMP_EQUAL:
        return instruction
    return code, if_true - index - 1, if_false - index - 1, operand


def _attach(target: socket.socket, program: list[Instruction]) -> None:
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(code)
    value = struct.pack("HxxxxxxP", len(program), ctypes.addressof(buffer))
    target.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, value)
