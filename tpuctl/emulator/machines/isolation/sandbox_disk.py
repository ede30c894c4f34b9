"""Limits what the programs of a running machine can write: a program of its own, like sandbox.py.

    python -I -S sandbox_disk.py PID REQUEST

PID is any process of the machine's; REQUEST is a JSON object: `folder`, an empty one of the machine
for bookkeeping; `writable`, the folders that share the limit; `mirrors`, by folder the other paths
at which it is mounted; `free`, how many bytes can still be written, null for no limit.

Writes go to a size-limited tmpfs in overlays of the folders: the kernel lets an ordinary user mount
nothing else of a limited size. When it is full, write(2) fails with ENOSPC. Processes that had a
file or their working directory open before are not limited.
"""

# Importing pathlib would make this noticeably slower.
# ruff: noqa: PTH101, PTH103, PTH110, PTH112, PTH114, PTH116, PTH118, PTH120, PTH123

from __future__ import annotations

import ctypes
import importlib
import json
import os
import re
import sys
from typing import Any

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND = 2, 4, 32, 4096
SYS_OPEN_TREE, SYS_MOVE_MOUNT, AT_FDCWD = 428, 429, -100  # the same on all processors
OPEN_TREE_CLONE, AT_RECURSIVE, MOVE_MOUNT_F_EMPTY_PATH = 1, 0x8000, 4
PAGE = os.sysconf("SC_PAGESIZE")
UNLIMITED_BYTES = 1 << 50


def enter(kernel: Any, pid: int) -> None:
    """Enter the machine's namespaces."""
    for name, kind in (("user", CLONE_NEWUSER), ("mnt", CLONE_NEWNS)):
        descriptor = os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
        kernel.check(kernel.libc.setns(descriptor, kind), f"setns {name}")
        os.close(descriptor)


def set_free(kernel: Any, folder: str, free: int | None) -> None:
    """Resize the file system so that `free` bytes are left."""
    filesystem = os.statvfs(folder)
    used = (filesystem.f_blocks - filesystem.f_bfree) * filesystem.f_frsize
    size = UNLIMITED_BYTES if free is None else used + -(-free // PAGE) * PAGE
    flags = MS_REMOUNT | MS_NOSUID | MS_NODEV
    kernel.mount("tmpfs", folder, "tmpfs", flags, f"size={size}")


def mount_overlays(kernel: Any, request: dict[str, Any], points: list[str]) -> None:
    """Mount the limited file system, and overlay each of the folders with it."""
    folder = request["folder"]
    kernel.mount(
        "tmpfs",
        folder,
        "tmpfs",
        MS_NOSUID | MS_NODEV,
        f"mode=700,size={UNLIMITED_BYTES},huge=never",
    )
    with open(os.path.join(folder, "taken"), "wb") as filler:
        filler.write(b"\0" * PAGE)  # size=0 would mean unlimited
    names = ("upper", "work")
    for number, path in enumerate(request["writable"]):
        layer = os.path.join(folder, str(number))
        for name in names:
            os.makedirs(os.path.join(layer, name))
        os.chmod(os.path.join(layer, "upper"), os.stat(path).st_mode & 0o7777)
        parts = {"lowerdir": path} | {f"{name}dir": os.path.join(layer, name) for name in names}
        options = ",".join(f"{name}={escaped(value)}" for name, value in parts.items())
        kernel.mount("overlay", path, "overlay", MS_NOSUID | MS_NODEV, f"{options},userxattr")
        for other in request["mirrors"].get(path, ()):
            if os.path.isdir(other) and not os.path.islink(other):
                bind_at(kernel, path, other, points)


def bind_at(kernel: Any, path: str, other: str, points: list[str]) -> None:
    """Bind a folder to another path too, and restore the mounts inside that path."""
    trees: dict[str, int] = {}
    for point in points:
        if point.startswith(f"{other}/") and not any(
            point.startswith(f"{parent}/") for parent in trees
        ):
            flags = OPEN_TREE_CLONE | AT_RECURSIVE | os.O_CLOEXEC
            trees[point] = system_call(kernel, SYS_OPEN_TREE, AT_FDCWD, point, flags)
    kernel.mount(path, other, None, MS_BIND)
    for point, tree in trees.items():
        system_call(kernel, SYS_MOVE_MOUNT, tree, "", AT_FDCWD, point, MOVE_MOUNT_F_EMPTY_PATH)


def system_call(kernel: Any, number: int, *arguments: int | str) -> int:
    """A system call that the C library may not wrap."""
    c_arguments = [
        ctypes.c_char_p(os.fsencode(argument))
        if isinstance(argument, str)
        else ctypes.c_long(argument)
        for argument in arguments
    ]
    result: int = kernel.libc.syscall(ctypes.c_long(number), *c_arguments)
    kernel.check(result, f"call {number} of {arguments}")
    return result


def mount_points(pid: int) -> list[str]:
    """The machine's mount points, outer ones first."""
    points = []
    with open(f"/proc/{pid}/mountinfo", "rb") as file:
        for line in file:
            escaped_path = line.split()[4]
            path = re.sub(rb"\\(\d{3})", lambda code: bytes([int(code[1], 8)]), escaped_path)
            points.append(os.fsdecode(path))
    return sorted(set(points))


def escaped(path: str) -> str:
    """The path escaped for overlay's mount options, where commas and colons separate values."""
    return re.sub(r"([\\,:])", r"\\\1", path)


def main(pid: int, request: dict[str, Any]) -> None:
    # A module of this folder, which python -I does not search.
    sys.path.insert(0, os.path.dirname(__file__))
    kernel: Any = importlib.import_module("sandbox_view")
    try:
        points = mount_points(pid)
        enter(kernel, pid)
        if not os.path.exists(os.path.join(request["folder"], "taken")):
            mount_overlays(kernel, request, points)
        set_free(kernel, request["folder"], request["free"])
    except OSError as problem:
        sys.exit(str(problem))


if __name__ == "__main__":
    main(int(sys.argv[1]), json.loads(sys.argv[2]))
