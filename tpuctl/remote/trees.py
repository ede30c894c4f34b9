"""One interface for local files and a worker's files.

Names are bytes, as in the file system: they need not be text. A file is written under a temporary
name and renamed when it is complete.
"""

# Paths are bytes, which pathlib does not support.
# ruff: noqa: PTH101, PTH103, PTH105, PTH108, PTH113, PTH114, PTH115, PTH116, PTH118, PTH211

from __future__ import annotations

import asyncio
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

from tpuctl.errors import NotFound, RemoteFailed, Transient, Usage
from tpuctl.remote.ssh import SshTransport

__all__ = ["Entry", "LocalTree", "RemoteTree", "Tree"]

Kind = Literal["file", "folder", "link", "other"]
ReportBytes = Callable[[int], None]  # called with the bytes done
BLOCK_BYTES, MAX_REQUESTS = 1 << 16, 16  # up to a megabyte of a file in flight
KINDS: dict[int, Kind] = {
    FILEXFER_TYPE_REGULAR: "file",
    FILEXFER_TYPE_DIRECTORY: "folder",
    FILEXFER_TYPE_SYMLINK: "link",
}
GLOB = b"*?["


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
    """Local files."""

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
            os.makedirs(path or b".", exist_ok=True)

    async def make_link(self, path: bytes, target: bytes) -> None:
        with self._convert_errors(path):
            if os.path.islink(path) or os.path.isfile(path):
                os.unlink(path)
            os.symlink(target, path)

    async def set_attributes(self, path: bytes, entry: Entry) -> None:
        with self._convert_errors(path):
            os.chmod(path, entry.mode)
            os.utime(path, (entry.modified, entry.modified))

    async def replace(self, part: bytes, path: bytes) -> None:
        with self._convert_errors(path):
            os.replace(part, path)

    async def remove(self, path: bytes) -> None:
        with suppress(OSError):
            os.unlink(path)

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

    async def fetch(self, path: bytes, part: bytes, report: ReportBytes) -> int:
        """Download to a local file; returns its size in bytes."""
        client = await self._sftp()
        count = _Count(report)
        with self._convert_errors(path), LocalTree()._convert_errors(part):
            await client.get(
                path,
                part,
                follow_symlinks=True,
                sparse=False,
                block_size=BLOCK_BYTES,
                max_requests=MAX_REQUESTS,
                progress_handler=count,
            )
        return count.total

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
    return path.decode("utf-8", "backslashreplace")


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
