"""One interface for local files and a worker's files.

Names are bytes, as in the file system: they need not be text. A file is written under a temporary
name and renamed when it is complete.
"""

# Paths are bytes, which pathlib does not support.
# ruff: noqa: PTH103, PTH115, PTH116, PTH118

from __future__ import annotations

import asyncio
import errno
import os
import posixpath
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Literal, Protocol

import asyncssh
from asyncssh.constants import (
    FILEXFER_TYPE_DIRECTORY,
    FILEXFER_TYPE_REGULAR,
    FILEXFER_TYPE_SYMLINK,
)

from tpuctl.errors import NotFound, RemoteFailed, TpuctlError, Transient, Usage
from tpuctl.model.text.terminal_text import without_control_characters
from tpuctl.remote.ssh import SshTransport

Kind = Literal["file", "folder", "link", "other"]
ReportBytes = Callable[[int], None]  # called with the bytes done
BLOCK_BYTES, MAX_REQUESTS = 1 << 16, 16  # up to a megabyte of a file in flight
KINDS: dict[int, Kind] = {
    FILEXFER_TYPE_REGULAR: "file",
    FILEXFER_TYPE_DIRECTORY: "folder",
    FILEXFER_TYPE_SYMLINK: "link",
}
GLOB = b"*?["
OPEN_UNFOLLOWED = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
OPEN_FOLDER = OPEN_UNFOLLOWED | os.O_DIRECTORY


@dataclass(frozen=True)
class Entry:
    """A file or folder; `name` is its path relative to the root of the walk."""

    path: bytes
    name: bytes
    kind: Kind
    size: int
    mode: int
    modified: int


class Tree(Protocol):
    """A file system. Raises NotFound, Usage, RemoteFailed, and Transient if a retry may help.

    Errors name the path, and the worker if it is remote.
    """

    def display(self, path: bytes) -> str:
        """The path as text, prefixed with the worker if it is remote."""
        ...

    async def stat(self, path: bytes) -> Entry | None:
        """The entry at a path, following links; None if there is none."""
        ...

    async def glob(self, pattern: bytes) -> list[bytes]:
        """The paths that match a shell pattern."""
        ...

    async def walk(self, path: bytes) -> list[Entry]:
        """Everything below a folder, each folder before its contents."""
        ...

    async def read_link(self, path: bytes) -> bytes: ...

    async def make_folder(self, path: bytes) -> None:
        """Create a folder and its parents, if missing."""
        ...

    async def make_link(self, path: bytes, target: bytes) -> None:
        """Create a link, replacing what exists unless it is a folder."""
        ...

    async def set_attributes(self, path: bytes, entry: Entry) -> None:
        """Set the entry's mode and modification time."""
        ...

    async def replace(self, part: bytes, path: bytes) -> None: ...

    async def remove(self, path: bytes) -> None:
        """Remove a file if it exists."""
        ...


class LocalTree:
    """Local files.

    With `root`, the destination of a download, nothing is written through a link below it: each
    folder below it is opened without following links.
    """

    def __init__(self, root: bytes | None = None) -> None:
        self._root = root

    def display(self, path: bytes) -> str:
        return _as_text(path)

    async def stat(self, path: bytes) -> Entry | None:
        with self._convert_errors(path):
            try:
                return _entry(path, b"", os.stat(path))
            except (FileNotFoundError, NotADirectoryError):
                return None

    async def glob(self, pattern: bytes) -> list[bytes]:
        return []  # already expanded by the user's shell

    async def walk(self, path: bytes) -> list[Entry]:
        return await asyncio.to_thread(lambda: list(self._below(path, b"")))

    def _below(self, path: bytes, name: bytes) -> Iterator[Entry]:
        with self._convert_errors(path), os.scandir(path) as listing:
            entries = sorted(listing, key=lambda item: item.name)
        for item in entries:
            with self._convert_errors(item.path):
                entry = _entry(
                    item.path, os.path.join(name, item.name), item.stat(follow_symlinks=False)
                )
            yield entry
            if entry.kind == "folder":
                yield from self._below(entry.path, entry.name)

    async def read_link(self, path: bytes) -> bytes:
        with self._convert_errors(path):
            return os.readlink(path)

    async def make_folder(self, path: bytes) -> None:
        with self._convert_errors(path):
            os.close(self._open_folder(path))

    async def make_link(self, path: bytes, target: bytes) -> None:
        with self._parent(path) as (folder, name):
            with suppress(FileNotFoundError):
                if not stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
                    os.unlink(name, dir_fd=folder)
            os.symlink(target, name, dir_fd=folder)

    async def set_attributes(self, path: bytes, entry: Entry) -> None:
        with self._parent(path) as (folder, name):
            handle = os.open(name, OPEN_UNFOLLOWED, dir_fd=folder)
            try:
                os.fchmod(handle, entry.mode)
                os.utime(handle, (entry.modified, entry.modified))
            finally:
                os.close(handle)

    async def replace(self, part: bytes, path: bytes) -> None:
        with self._parent(path) as (folder, name):
            os.replace(posixpath.basename(part), name, src_dir_fd=folder, dst_dir_fd=folder)

    async def remove(self, path: bytes) -> None:
        with suppress(TpuctlError), self._parent(path) as (folder, name):
            os.unlink(name, dir_fd=folder)

    @contextmanager
    def create(self, path: bytes) -> Iterator[int]:
        """A new file, open for writing, in place of what has its name."""
        with self._parent(path) as (folder, name):
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            handle = os.open(name, flags, 0o600, dir_fd=folder)
        try:
            yield handle
        finally:
            os.close(handle)

    @contextmanager
    def _parent(self, path: bytes) -> Iterator[tuple[int, bytes]]:
        """The open folder that contains a path, and the last component of the path."""
        with self._convert_errors(path):
            parent, name = posixpath.split(path.rstrip(b"/"))
            folder = self._open_folder(parent)
            try:
                yield folder, name
            finally:
                os.close(folder)

    def _open_folder(self, path: bytes) -> int:
        """Open a folder, and create it and its parents if missing."""
        root = path if self._root is None else self._root
        os.makedirs(root or b".", exist_ok=True)
        folder = os.open(root or b".", OPEN_FOLDER & ~os.O_NOFOLLOW)
        try:
            for name in path.removeprefix(root).split(b"/"):
                if name in (b"", b"."):
                    continue
                if name == b"..":
                    raise OSError(errno.EINVAL, "Leads out of the destination")
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=folder)
                inner = _open_unfollowed(name, folder)
                os.close(folder)
                folder = inner
        except BaseException:
            os.close(folder)
            raise
        return folder

    @contextmanager
    def _convert_errors(self, path: bytes) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise NotFound(
                "No such file",
                self.display(path),
                hint="Check the path: it is relative to the current folder.",
            ) from error
        except ConnectionError:  # from the worker, not a file
            raise
        except OSError as error:
            raise Usage(
                "Cannot access file",
                f"{self.display(path)}: {error.strerror}",
                hint="Choose another path, or change its permissions.",
            ) from error


def _open_unfollowed(name: bytes, folder: int) -> int:
    try:
        return os.open(name, OPEN_FOLDER, dir_fd=folder)
    except OSError as error:
        if not stat.S_ISLNK(os.lstat(name, dir_fd=folder).st_mode):
            raise
        text = f"{_as_text(name)} is a link, and nothing is written through links"
        raise OSError(errno.ELOOP, text) from error


class RemoteTree:
    """A worker's files, over SFTP; paths are relative to the user's home.

    After a dropped connection the next call reconnects.
    """

    def __init__(self, transport: SshTransport) -> None:
        self._transport = transport
        self._client: asyncssh.SFTPClient | None = None
        self._opening = asyncio.Lock()

    def display(self, path: bytes) -> str:
        return f"{self._transport.name}:{_as_text(path)}"

    async def stat(self, path: bytes) -> Entry | None:
        client = await self._sftp()
        with self._convert_errors(path):
            try:
                return _remote_entry(path, b"", await client.stat(path or b"."))
            except (asyncssh.SFTPNoSuchFile, asyncssh.SFTPNoSuchPath, asyncssh.SFTPNotADirectory):
                return None

    async def glob(self, pattern: bytes) -> list[bytes]:
        if not any(character in pattern for character in GLOB):
            return []
        client = await self._sftp()
        with self._convert_errors(pattern):
            try:
                return [_as_bytes(path) for path in await client.glob(pattern)]
            except (asyncssh.SFTPNoSuchFile, asyncssh.SFTPNoSuchPath):
                return []

    async def walk(self, path: bytes) -> list[Entry]:
        entries: list[Entry] = []
        pending = [(path, b"")]
        client = await self._sftp()
        while pending:
            folder, name = pending.pop()
            with self._convert_errors(folder):
                listing = [
                    (_as_bytes(item.filename), item.attrs)
                    async for item in client.scandir(folder or b".")
                ]
            for filename, attributes in sorted(listing, key=lambda item: item[0]):
                if filename in (b".", b".."):
                    continue
                if b"/" in filename or not filename:  # it could escape the folder
                    raise RemoteFailed(
                        "Invalid file name on worker",
                        f"{self.display(folder)}: {filename!r}",
                        hint="Nothing was written. Inspect that folder on the worker:\n"
                        "    tpuctl ssh -- ls -la",
                    )
                entry = _remote_entry(
                    posixpath.join(folder, filename), posixpath.join(name, filename), attributes
                )
                entries.append(entry)
                if entry.kind == "folder":
                    pending.append((entry.path, entry.name))
        return entries

    async def read_link(self, path: bytes) -> bytes:
        client = await self._sftp()
        with self._convert_errors(path):
            return _as_bytes(await client.readlink(path))

    async def make_folder(self, path: bytes) -> None:
        if not path:
            return
        client = await self._sftp()
        with self._convert_errors(path):
            await client.makedirs(path, exist_ok=True)

    async def make_link(self, path: bytes, target: bytes) -> None:
        client = await self._sftp()
        with self._convert_errors(path):
            if await client.lexists(path):
                existing = await client.lstat(path)
                if existing.type != FILEXFER_TYPE_DIRECTORY:
                    await client.remove(path)
            await client.symlink(target, path)

    async def set_attributes(self, path: bytes, entry: Entry) -> None:
        client = await self._sftp()
        attributes = asyncssh.SFTPAttrs(
            permissions=entry.mode, atime=entry.modified, mtime=entry.modified
        )
        with self._convert_errors(path):
            await client.setstat(path, attributes)

    async def replace(self, part: bytes, path: bytes) -> None:
        client = await self._sftp()
        with self._convert_errors(path):
            await client.posix_rename(part, path)

    async def remove(self, path: bytes) -> None:
        client = await self._sftp()
        with suppress(asyncssh.Error):
            await client.remove(path)

    async def send(self, source: bytes, part: bytes, report: ReportBytes) -> int:
        """Upload a local file; returns its size in bytes."""
        client = await self._sftp()
        count = _Count(report)
        with self._convert_errors(part), LocalTree()._convert_errors(source):
            await client.put(
                source,
                part,
                follow_symlinks=True,
                sparse=False,
                block_size=BLOCK_BYTES,
                max_requests=MAX_REQUESTS,
                progress_handler=count,
            )
        return count.total

    async def fetch(self, target: LocalTree, path: bytes, part: bytes, report: ReportBytes) -> int:
        """Download to a local file; returns its size in bytes.

        No more is written than the size that the worker announces.
        """
        client = await self._sftp()
        done = 0
        with self._convert_errors(path):
            source = await client.open(
                path, "rb", block_size=BLOCK_BYTES, max_requests=MAX_REQUESTS
            )
            async with source:
                size = (await source.stat()).size or 0
                with target.create(part) as handle:
                    async for offset, data in await source.read_parallel(size, 0):
                        if offset + len(data) > size:
                            raise asyncssh.SFTPBadMessage("more data than announced")
                        with target._convert_errors(part):
                            os.pwrite(handle, data, offset)
                        done += len(data)
                        report(done)
        return size

    async def _sftp(self) -> asyncssh.SFTPClient:
        async with self._opening:
            if self._client is None:
                self._client = await self._transport.files()
            return self._client

    @contextmanager
    def _convert_errors(self, path: bytes) -> Iterator[None]:
        where = self.display(path)
        try:
            yield
        except (asyncssh.SFTPNoConnection, asyncssh.SFTPConnectionLost) as error:
            self._client = None
            raise Transient(
                "Connection to worker lost",
                where,
                hint="Repeat the command. To see whether the machine is still running:\n    tpuctl "
                "status",
            ) from error
        except (asyncssh.SFTPNoSuchFile, asyncssh.SFTPNoSuchPath) as error:
            raise NotFound(
                "No such file",
                where,
                hint="Check the path: on workers it is relative to your home.\n"
                "    tpuctl ssh -- ls -la",
            ) from error
        except asyncssh.SFTPPermissionDenied as error:
            raise RemoteFailed(
                "Permission denied for file",
                where,
                hint="Copy to your home on the worker, or check the file's owner:\n    tpuctl ssh "
                "-- ls -la",
            ) from error
        except asyncssh.SFTPError as error:
            # OpenSSH reports most errors, such as a full disk, only as "Failure".
            raise RemoteFailed(
                "Copy failed on worker",
                f"{where}: {error.reason}",
                hint=f"See whether its disk is full:\n"
                f"    tpuctl ssh {self._transport.name} -- df -h",
            ) from error
        except (asyncssh.Error, OSError) as error:
            self._client = None
            raise Transient(
                "Connection to worker lost",
                f"{where}: {error}",
                hint="Repeat the command. To see whether the machine is still running:\n    tpuctl "
                "status",
            ) from error


class _Count:
    def __init__(self, report: ReportBytes) -> None:
        self._report = report
        self.total = 0

    def __call__(self, source: bytes, target: bytes, done: int, total: int) -> None:
        self.total = total
        self._report(done)


def _as_text(path: bytes) -> str:
    return without_control_characters(path.decode("utf-8", "backslashreplace"))


def _entry(path: bytes, name: bytes, status: os.stat_result) -> Entry:
    kind: Kind = "other"
    if stat.S_ISREG(status.st_mode):
        kind = "file"
    elif stat.S_ISDIR(status.st_mode):
        kind = "folder"
    elif stat.S_ISLNK(status.st_mode):
        kind = "link"
    mode = stat.S_IMODE(status.st_mode) & 0o777
    return Entry(path, name, kind, status.st_size, mode, int(status.st_mtime))


def _remote_entry(path: bytes, name: bytes, attributes: asyncssh.SFTPAttrs) -> Entry:
    kind = KINDS.get(attributes.type, "other")
    mode = (attributes.permissions or 0) & 0o777
    return Entry(path, name, kind, attributes.size or 0, mode, int(attributes.mtime or 0))


def _as_bytes(name: str | bytes) -> bytes:
    return os.fsencode(name)
