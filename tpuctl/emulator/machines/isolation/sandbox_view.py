"""A machine's namespaces and its view of the file system: a part of the program sandbox.py."""

# Importing pathlib would make the start of a machine noticeably slower.
# ruff: noqa: PTH102, PTH103, PTH110, PTH112, PTH114, PTH116, PTH120, PTH123, PTH211

from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys
from typing import Any

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
SYS_MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE = 442, -100, 0x8000
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID = 1, 2
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 24, 36, 38
LINUX = sys.platform == "linux"
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, action: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{action}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    result = libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3])
    check(result, f"mount {target}")


def set_mount(path: str, *, add: int = 0, clear: int = 0, flags: int = 0) -> None:
    attributes = struct.pack("QQQQ", add, clear, 0, 0)
    result = libc.syscall(
        ctypes.c_long(SYS_MOUNT_SETATTR),
        ctypes.c_int(AT_FDCWD),
        ctypes.c_char_p(os.fsencode(path)),
        ctypes.c_uint(flags),
        ctypes.c_char_p(attributes),
        ctypes.c_size_t(len(attributes)),
    )
    check(result, f"mount_setattr {path}")


def bind(descriptor: int, target: str, *, writable: bool) -> None:
    """Bind-mount the descriptor's file at the target, which is created if missing."""
    source = f"/proc/self/fd/{descriptor}"
    if not os.path.lexists(target):
        if os.path.isdir(source):
            os.makedirs(target, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    mount(source, target, None, MS_BIND | MS_REC)
    attribute = {"clear": MOUNT_ATTR_RDONLY} if writable else {"add": MOUNT_ATTR_RDONLY}
    set_mount(target, **attribute)


def same_file(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.stat(descriptor), os.stat(path))
    except OSError:
        return False


def enter_user_namespace(ids: list[int], *, own_network: bool) -> None:
    """Enter new namespaces in which the user and group have these ids.

    The next child enters the new PID namespace.
    """
    user, group = os.getuid(), os.getgid()
    spaces = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS
    check(libc.unshare(spaces | (CLONE_NEWNET if own_network else 0)), "unshare")
    die_with_parent()  # forgotten by the kernel when the user namespace changes
    for file, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{ids[0]} {user} 1"),
        ("gid_map", f"{ids[1]} {group} 1"),
    ):
        with open(f"/proc/self/{file}", "w", encoding="ascii") as map_:
            map_.write(text)


def build_view(view: dict[str, Any]) -> None:
    """Mount the machine's view of the file system, as its init process.

    Everything is read-only except `writable` and new mounts; `hidden` folders are empty except
    for what `readable` and `writable` mount back; `overlaid` maps paths to files.
    """
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    resolver = os.path.realpath("/etc/resolv.conf")
    readable = [*view["readable"], resolver, "/run/current-system"]
    visible = [(path, False) for path in readable] + [(path, True) for path in view["writable"]]
    # Opened before anything is hidden: a hidden folder can still be mounted through a descriptor.
    opened = sorted(
        (path, os.open(path, os.O_PATH | os.O_CLOEXEC), writable)
        for path, writable in visible
        if os.path.exists(path)
    )
    overlaid = [
        (target, os.open(source, os.O_PATH | os.O_CLOEXEC))
        for target, source in view["overlaid"].items()
        if os.path.exists(target)
    ]
    devices = [(name, os.open(f"/dev/{name}", os.O_PATH | os.O_CLOEXEC)) for name in DEVICES]
    temporary = os.open(view["temporary"], os.O_PATH | os.O_CLOEXEC)

    set_mount("/", add=MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID, flags=AT_RECURSIVE)
    for path in ("/tmp", "/var/tmp"):
        if os.path.isdir(path) and not os.path.islink(path):
            bind(temporary, path, writable=True)
    hidden = [path for path in ["/run", *view["hidden"]] if os.path.isdir(path)]
    for path in hidden:
        mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1m")
    for path, descriptor, writable in opened:
        if writable or not same_file(descriptor, path):
            bind(descriptor, path, writable=writable)
    for path in hidden:
        set_mount(path, add=MOUNT_ATTR_RDONLY)
    for path, descriptor in overlaid:
        bind(descriptor, path, writable=False)
    build_devices(devices)
    # A new /proc shows only this machine's processes; its system settings are read-only, since
    # the kernel checks some of them by user, not by namespace.
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for path in ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus"):
        if os.path.exists(path):
            mount(path, path, None, MS_BIND)
            set_mount(path, add=MOUNT_ATTR_RDONLY)
    name = view["hostname"].encode()
    check(libc.sethostname(name, ctypes.c_size_t(len(name))), "sethostname")
    os.chdir("/")


def build_devices(devices: list[tuple[str, int]]) -> None:
    mount("tmpfs", "/dev", "tmpfs", MS_NOSUID, "mode=755,size=1m")
    for name, descriptor in devices:
        bind(descriptor, f"/dev/{name}", writable=True)
    os.mkdir("/dev/pts")
    mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666")
    os.mkdir("/dev/shm")
    mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
    os.symlink("pts/ptmx", "/dev/ptmx")
    os.symlink("/proc/self/fd", "/dev/fd")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.symlink(f"/proc/self/fd/{number}", f"/dev/{name}")


def drop_privileges() -> None:
    """Drop all capabilities of the new user namespace, for this process and its children."""
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    for capability in range(64):
        if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            break  # past the last capability of this kernel
    header = struct.pack("II", 0x20080522, 0)
    check(libc.capset(header, struct.pack("IIIIII", *[0] * 6)), "capset")


def die_with_parent() -> None:
    """Die when the parent process ends; only on Linux."""
    if LINUX:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def adopt_orphans() -> None:
    """Reparent orphaned descendants to this process; only on Linux."""
    if LINUX:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
