"""Notifications about a machine's connections: a part of the program sandbox.py.

A seccomp filter, inherited by all programs of the machine, stops bind(2), connect(2), and listen(2)
until the server has decided (seccomp_unotify(2)).
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

SECCOMP_SET_MODE_FILTER, NEW_LISTENER, SPEC_ALLOW = 1, 8, 4
ALLOW, NOTIFY = 0x7FFF0000, 0x7FC00000
LOAD, JUMP_EQUAL, RETURN = 0x20, 0x15, 0x06
NUMBER, ARCHITECTURE = 0, 4  # offsets in struct seccomp_data
# By machine name: AUDIT_ARCH_*, and the numbers of seccomp, bind, connect, and listen.
SYSTEM_CALLS = {
    "x86_64": (0xC000003E, 317, 49, 42, 50),
    "aarch64": (0xC00000B7, 277, 200, 203, 201),
}

libc = ctypes.CDLL(None, use_errno=True)


def watch_connections() -> int:
    """Watch this process and its future children; returns the descriptor of the notifications.

    Requires "no new privileges". Raises OSError where the kernel does not support it.
    """
    name = os.uname().machine
    if name not in SYSTEM_CALLS:
        raise OSError(errno.ENOSYS, f"not supported on {name}")
    architecture, seccomp, bind, connect, listen = SYSTEM_CALLS[name]
    instructions = (
        (LOAD, 0, 0, ARCHITECTURE),
        (JUMP_EQUAL, 0, 4, architecture),
        (LOAD, 0, 0, NUMBER),
        (JUMP_EQUAL, 3, 0, bind),
        (JUMP_EQUAL, 2, 0, connect),
        (JUMP_EQUAL, 1, 0, listen),
        (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, NOTIFY),
    )
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in instructions)
    buffer = ctypes.create_string_buffer(code)
    program = struct.pack("HxxxxxxP", len(instructions), ctypes.addressof(buffer))
    # SPEC_ALLOW: do not slow programs down by mitigations against attacks on speculation.
    descriptor: int = libc.syscall(
        ctypes.c_long(seccomp),
        ctypes.c_uint(SECCOMP_SET_MODE_FILTER),
        ctypes.c_uint(NEW_LISTENER | SPEC_ALLOW),
        ctypes.c_char_p(program),
    )
    if descriptor < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return descriptor
