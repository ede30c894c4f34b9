"""Decides about the sockets of one machine's programs while they wait in connect(2) or bind(2).

The machine's seccomp filter (sandbox_connections.py) sends a notification for each bind(2),
connect(2), and listen(2) of its programs. Sockets that connect to machines are bound to the
machine's own address, by which the other side recognizes it. What the networks do not allow is
dropped: the program waits for its timeout, as on Google. Machines have no interface of their own:
what programs take for their machine's address, the source of a UDP socket that is connected
somewhere or an address of this computer's interfaces, is made to be the machine's. A program that
works around it is not stopped: this is a rehearsal of firewall rules, not protection from programs
(seccomp_unotify(2), "Caveats").
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import fcntl
import functools
import os
import select
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address

from tpuctl.emulator.machines.isolation.sandbox_connections import SYSTEM_CALLS
from tpuctl.emulator.machines.network.socket_filter import drop_all, restrict_listener

# struct seccomp_notif: id, thread, flags; number, architecture, instruction pointer, arguments.
NOTIFICATION = struct.Struct("QIIiIQ6Q")
RECEIVE, SEND, CHECK_ID = 0xC0502100, 0xC0182101, 0x40082102
CONTINUE = 1
SYS_PIDFD_GETFD = 438
IP_BIND_ADDRESS_NO_PORT = 24
MAX_ADDRESS_BYTES = 28  # of struct sockaddr_in6
DISCARD_PORT = 9
# Coordinators that listen at all addresses: JAX's (8476, since 0.8.1 8482), PyTorch/XLA's (8477;
# 12355 for `xla://`), torchrun's (29400 or 29500).
RUNTIME_PORTS = frozenset({*range(8470, 8483), 12355, 29400, 29500})
# UDP that is more than a question for the own address: NTP and QUIC.
UDP_PORTS = frozenset({123, 443})
MAX_LISTENERS = 100  # some of which may be of programs that have ended

libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Decisions:
    """What a watch asks about its machine."""

    address: str  # the machine's, on loopback
    machines: IPv4Network  # the addresses of all machines
    # Whether programs may connect to an address and port; None is an address of IPv6.
    allows_connection: Callable[[str | None, int], bool]
    allows_outside: Callable[[int], bool]  # whether this computer may connect to the port
    # The address of the only other machine with a listener at a port, if there is one.
    listening: Callable[[int], str | None]


@dataclass(frozen=True)
class _Listener:
    process: int  # a handle (pidfd_open(2))
    port: int


class ConnectionWatch:
    """Answers the notifications of one machine, until its programs have ended."""

    def __init__(self, notifications: int, decisions: Decisions) -> None:
        """Takes over the descriptor."""
        self._notifications = notifications
        self._decisions = decisions
        self._listeners: dict[tuple[int, int], _Listener] = {}  # by process and descriptor
        self._poll = select.poll()
        self._poll.register(notifications, select.POLLIN)
        self._is_open = True
        _, _, self._bind_number, self._connect_number, _ = SYSTEM_CALLS[os.uname().machine]
        asyncio.get_running_loop().add_reader(notifications, self._on_readable)

    def close(self) -> None:
        """Stop; system calls that are still watched then fail."""
        if self._is_open:
            self._is_open = False
            asyncio.get_running_loop().remove_reader(self._notifications)
            os.close(self._notifications)
            for listener in self._listeners.values():
                os.close(listener.process)
            self._listeners.clear()

    def has_listener(self, port: int) -> bool:
        """Whether a program of the machine listens, or has listened, at this port."""
        return any(listener.port == port for listener in self._listeners.values())

    def refresh(self) -> None:
        """Apply changed rules to the listeners of running programs, and forget the others."""
        for key, listener in list(self._listeners.items()):
            try:
                with _copy_socket(listener.process, key[1]) as copy:
                    if copy.getsockname()[1] != listener.port:
                        raise OSError(errno.EBADF, "another socket")
                    self._restrict(copy, listener.port)
            except OSError:
                del self._listeners[key]
                os.close(listener.process)

    def _on_readable(self) -> None:
        # Without a notification, receiving would block.
        if not any(event & select.POLLIN for _, event in self._poll.poll(0)):
            self.close()
            return
        buffer = bytearray(NOTIFICATION.size)
        try:
            fcntl.ioctl(self._notifications, RECEIVE, buffer)
        except OSError:
            return  # the program was interrupted or killed
        id_, thread, _, number, _, _, *arguments = NOTIFICATION.unpack(buffer)
        error: int | None = None
        with contextlib.suppress(OSError), _Process(thread) as process:
            descriptor, pointer, length, *_ = arguments
            target = b""
            if number in (self._bind_number, self._connect_number):
                target = _read_memory(thread, pointer, min(length, MAX_ADDRESS_BYTES))
            # If the program has ended, another one may have its number by now: raises OSError.
            fcntl.ioctl(self._notifications, CHECK_ID, struct.pack("Q", id_))
            if number == self._bind_number:
                error = self._on_bind(process, descriptor, target)
            elif number == self._connect_number:
                error = self._on_connect(process, descriptor, target)
            else:
                self._on_listen(process, descriptor)
        response = struct.pack("QqiI", id_, 0, -(error or 0), CONTINUE if error is None else 0)
        with contextlib.suppress(OSError):
            fcntl.ioctl(self._notifications, SEND, response)

    def _on_bind(self, process: _Process, descriptor: int, target: bytes) -> int | None:
        """The error number to return, 0 for none; None executes the system call.

        All addresses become the machine's own for the TPU runtime's ports: other machines on this
        computer use them, too. This computer's address, which programs take for that of their
        machine, becomes the machine's.
        """
        address, port = _parse(target) or (None, 0)
        if address is None:
            return None
        is_shared = address.is_unspecified and port in RUNTIME_PORTS
        if not is_shared and not _is_of_this_computer(address):
            return None
        with _copy_socket(process.handle, descriptor) as binding:
            try:
                binding.bind((self._in_family(binding, self._decisions.address), port))
            except OSError as problem:
                return problem.errno
        return 0

    def _on_connect(self, process: _Process, descriptor: int, target: bytes) -> int | None:
        """The error number to return, 0 for none; None executes the system call."""
        address, port = _parse(target) or (None, 0)
        if address is None:
            return None
        is_version_4 = isinstance(address, IPv4Address)
        if not is_version_4 and (address.is_loopback or address.is_unspecified):
            return None
        is_machine = address in self._decisions.machines
        is_local = address.is_loopback and not is_machine
        if is_local and port not in RUNTIME_PORTS:
            return None
        with _copy_socket(process.handle, descriptor) as connecting:
            if connecting.type == socket.SOCK_DGRAM:
                return self._on_connect_datagrams(connecting, address, port)
            if connecting.type != socket.SOCK_STREAM:
                return None
            is_own = is_local or _is_of_this_computer(address)
            if is_own and self.has_listener(port):
                self._identify(connecting)
                return self._connect(connecting, self._decisions.address, port)
            if is_local:
                return None
            other = self._decisions.listening(port) if is_own else None
            if other is not None and self._decisions.allows_connection(other, port):
                self._identify(connecting)
                return self._connect(connecting, other, port)
            text = str(address) if is_version_4 else None
            if not self._decisions.allows_connection(text, port):
                return self._drop(connecting) if is_version_4 else errno.ENETUNREACH
            if is_machine:
                self._identify(connecting)
        return None

    def _on_connect_datagrams(
        self, connecting: socket.socket, address: IPv4Address | IPv6Address, port: int
    ) -> int | None:
        """Programs connect UDP sockets to learn their address: 8.8.8.8:80 is only a pretext.

        A socket with a source on loopback cannot be connected to another address, so that the
        machine itself takes its place.
        """
        if connecting.family != socket.AF_INET or str(address) in _name_servers():
            return None
        is_machine = address in self._decisions.machines
        if not is_machine and port in UDP_PORTS:
            return None
        self._identify(connecting)
        if is_machine:
            return None
        return self._connect(connecting, self._decisions.address, DISCARD_PORT)

    def _identify(self, connecting: socket.socket) -> None:
        """Bind it to the machine's address, unless the program has bound it."""
        with contextlib.suppress(OSError):
            connecting.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
            connecting.bind((self._in_family(connecting, self._decisions.address), 0))

    def _drop(self, connecting: socket.socket) -> int | None:
        drop_all(connecting)
        nowhere = str(self._decisions.machines.broadcast_address)
        return self._connect(connecting, nowhere, DISCARD_PORT)

    def _connect(self, connecting: socket.socket, address: str, port: int) -> int | None:
        """Start to connect to another address; a blocking socket then waits in connect(2)."""
        is_blocking = os.get_blocking(connecting.fileno())
        os.set_blocking(connecting.fileno(), False)
        try:
            error = connecting.connect_ex((self._in_family(connecting, address), port))
        finally:
            os.set_blocking(connecting.fileno(), is_blocking)
        is_waiting = error in (errno.EINPROGRESS, errno.EALREADY)
        return None if is_waiting and is_blocking else error

    @staticmethod
    def _in_family(connecting: socket.socket, address: str) -> str:
        return address if connecting.family == socket.AF_INET else f"::ffff:{address}"

    def _on_listen(self, process: _Process, descriptor: int) -> None:
        with _copy_socket(process.handle, descriptor) as listener:
            if listener.family not in (socket.AF_INET, socket.AF_INET6):
                return
            host, port, *_ = listener.getsockname()
            address = _address_of(host)
            if address.is_loopback and str(address) != self._decisions.address:
                return  # localhost
            self._restrict(listener, port)
        if len(self._listeners) >= MAX_LISTENERS:
            self.refresh()
        former = self._listeners.get((process.number, descriptor))
        if former is not None:
            os.close(former.process)
        handle = os.dup(process.handle)
        self._listeners[process.number, descriptor] = _Listener(handle, port)

    def _restrict(self, listener: socket.socket, port: int) -> None:
        restrict_listener(
            *(listener, self._decisions.address, self._decisions.machines),
            allows_outside=self._decisions.allows_outside(port),
        )


@functools.cache
def _name_servers() -> frozenset[str]:
    """Those of this computer, which machines use, too."""
    with contextlib.suppress(OSError), open("/etc/resolv.conf", encoding="utf-8") as file:  # noqa: PTH123
        words = [line.split() for line in file]
        return frozenset(line[1] for line in words if line[:1] == ["nameserver"] and line[1:])
    return frozenset()


def _is_of_this_computer(address: IPv4Address | IPv6Address) -> bool:
    """Whether an interface of this computer, other than loopback, has this address."""
    if not isinstance(address, IPv4Address) or address.is_loopback or address.is_unspecified:
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
    return True


class _Process:
    """An opened process: the handle is of no other one, even if that gets the number later."""

    def __init__(self, thread: int) -> None:
        """Raises OSError if it has ended."""
        self.number = _process_of(thread)
        self.handle = os.pidfd_open(self.number)

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.handle)


def _process_of(thread: int) -> int:
    with open(f"/proc/{thread}/status", encoding="ascii", errors="replace") as status:  # noqa: PTH123
        for line in status:
            if line.startswith("Tgid:"):
                return int(line.split()[1])
    raise ProcessLookupError(thread)


def _read_memory(thread: int, pointer: int, length: int) -> bytes:
    memory = os.open(f"/proc/{thread}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(memory, length, pointer)
    finally:
        os.close(memory)


def _copy_socket(process: int, descriptor: int) -> socket.socket:
    """A copy of an opened process's socket. Raises OSError if it is none."""
    copied: int = libc.syscall(
        *(ctypes.c_long(SYS_PIDFD_GETFD), ctypes.c_int(process)),
        *(ctypes.c_int(descriptor), ctypes.c_uint(0)),
    )
    if copied < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    try:
        return socket.socket(fileno=copied)
    except BaseException:
        os.close(copied)
        raise


def _parse(target: bytes) -> tuple[IPv4Address | IPv6Address, int] | None:
    """The address and port of a struct sockaddr; None for other families."""
    if len(target) < 8:
        return None
    (family,), (port,) = struct.unpack_from("H", target), struct.unpack_from("!H", target, 2)
    if family == socket.AF_INET:
        return IPv4Address(target[4:8]), port
    if family != socket.AF_INET6 or len(target) < 24:
        return None
    return _without_mapping(IPv6Address(target[8:24])), port


def _address_of(host: str) -> IPv4Address | IPv6Address:
    """A listener's address."""
    with contextlib.suppress(ValueError):
        return IPv4Address(host)
    return _without_mapping(IPv6Address(host.partition("%")[0]))


def _without_mapping(address: IPv6Address) -> IPv4Address | IPv6Address:
    """One that stands for an IPv4 address as that."""
    return address.ipv4_mapped or address
