"""SFTP and scp on a machine, with the same view of the file system as its programs."""

# Paths come as bytes, which pathlib does not take.
# ruff: noqa: PTH101, PTH110, PTH118, PTH211

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias, cast

import asyncssh
from asyncssh.constants import FXF_CREAT, FXF_READ

from tpuctl.emulator.machines.isolation.disk_space import LimitedDisk

Channel: TypeAlias = "asyncssh.SSHServerChannel[bytes]"

UMASK = 0o022  # of the machine's users; the server's own is stricter


class MachineFiles(asyncssh.SFTPServer):
    """Relative paths start in the user's home, /tmp is the machine's, the rest is read-only."""

    def __init__(
        self,
        channel: Channel,
        home: Path,
        temporary: Path,
        writable: Sequence[Path],
        disk: LimitedDisk,
    ) -> None:
        super().__init__(channel)
        self._disk = disk
        self._home = os.fsencode(home)
        self._temporary = os.fsencode(temporary)
        self._writable = [os.path.realpath(os.fsencode(path)) for path in writable]
        self._own = [self._home, *(os.fsencode(path) for path in writable)]

    def map_path(self, path: bytes) -> bytes:
        """The server's path of a file; on a limited disk in the machine's mount namespace."""
        return os.fsencode(self._disk.root) + self._local(path)

    def _local(self, path: bytes) -> bytes:
        absolute = os.path.join(self._home, path)
        for folder in (b"/tmp", b"/var/tmp"):
            inside = absolute == folder or absolute.startswith(folder + b"/")
            # The machine's disk may itself be in the host's temporary folder.
            if inside and not any(
                _is_within(absolute, machine_folder) for machine_folder in self._own
            ):
                return self._temporary + absolute[len(folder) :]
        return absolute

    def reverse_map_path(self, path: bytes) -> bytes:
        if _is_within(path, self._temporary):
            return b"/tmp" + path[len(self._temporary) :]
        return path

    def open(self, path: bytes, pflags: int, attrs: asyncssh.SFTPAttrs) -> object:
        if pflags & ~FXF_READ:
            self._require_writable(path)
        is_new = bool(pflags & FXF_CREAT) and not os.path.exists(self.map_path(path))
        file = super().open(path, pflags, attrs)
        if is_new:
            os.fchmod(cast(io.FileIO, file).fileno(), _mode(attrs, 0o666))
        return file

    def open56(
        self, path: bytes, desired_access: int, flags: int, attrs: asyncssh.SFTPAttrs
    ) -> object:
        raise asyncssh.SFTPOpUnsupported("this server supports SFTP version 3")

    def write(self, file_obj: object, offset: int, data: bytes) -> int:
        """Write all data: a full disk is an error, not a short write."""
        file = cast(io.FileIO, file_obj)
        file.seek(offset)
        left = memoryview(data)
        while left:
            left = left[file.write(left) :]
        return len(data)

    def setstat(self, path: bytes, attrs: asyncssh.SFTPAttrs) -> None:
        self._require_writable(path)
        super().setstat(path, attrs)

    def lsetstat(self, path: bytes, attrs: asyncssh.SFTPAttrs) -> None:
        self._require_writable(path)
        super().lsetstat(path, attrs)

    def remove(self, path: bytes) -> None:
        self._require_writable(path, follow=False)
        super().remove(path)

    def mkdir(self, path: bytes, attrs: asyncssh.SFTPAttrs) -> None:
        self._require_writable(path)
        super().mkdir(path, attrs)
        os.chmod(self.map_path(path), _mode(attrs, 0o777))

    def rmdir(self, path: bytes) -> None:
        self._require_writable(path, follow=False)
        super().rmdir(path)

    def rename(self, oldpath: bytes, newpath: bytes) -> None:
        self._require_writable(oldpath, follow=False)
        self._require_writable(newpath, follow=False)
        super().rename(oldpath, newpath)

    def posix_rename(self, oldpath: bytes, newpath: bytes) -> None:
        self._require_writable(oldpath, follow=False)
        self._require_writable(newpath, follow=False)
        super().posix_rename(oldpath, newpath)

    def symlink(self, oldpath: bytes, newpath: bytes) -> None:
        self._require_writable(newpath, follow=False)
        os.symlink(oldpath, self.map_path(newpath))

    def link(self, oldpath: bytes, newpath: bytes) -> None:
        self._require_writable(oldpath)
        self._require_writable(newpath, follow=False)
        super().link(oldpath, newpath)

    def exit(self) -> None:
        """Without an exit status OpenSSH's scp copies everything and then fails."""
        self.channel.exit(0)

    def _require_writable(self, path: bytes, *, follow: bool = True) -> None:
        local = self._local(path)
        folder, name = os.path.split(local.rstrip(b"/"))
        real = os.path.realpath(local) if follow else os.path.join(os.path.realpath(folder), name)
        if not any(_is_within(real, allowed) for allowed in self._writable):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def _mode(attrs: asyncssh.SFTPAttrs, default: int) -> int:
    """The mode of a created file, as in OpenSSH's sftp-server.c: the client's minus the umask."""
    mode = default if attrs.permissions is None else stat.S_IMODE(attrs.permissions)
    return mode & ~UMASK


def _is_within(path: bytes, folder: bytes) -> bool:
    return path == folder or path.startswith(folder.rstrip(b"/") + b"/")
