"""Files and folders, here and on a worker, seen and changed alike.

Names are bytes as the file systems have them: they need not be text. A file is written beside its
place and put there when it is whole.
"""

# Paths as bytes, which pathlib does not take.
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
Sent = Callable[[int], None]  # bytes done
BLOCK, REQUESTS = 1 << 16, 16  # what is under way of one file: at most a megabyte
KINDS: dict[int, Kind] = {
    FILEXFER_TYPE_REGULAR: "file",
    FILEXFER_TYPE_DIRECTORY: "folder",
    FILEXFER_TYPE_SYMLINK: "link",
}
GLOB = b"*?["


@dataclass(frozen=True)
class Entry:
    """One thing of a tree; `name` is its path below the tree's root."""

    path: bytes
    name: bytes
    kind: Kind
    size: int
    mode: int
    modified: int


class Tree(Protocol):
    """A file system. Raises NotFound, Usage, RemoteFailed, and Transient when it may be repeated.

    Errors name the path, and the worker where it is on one.
    """

    def shown(self, path: bytes) -> str:
        """A path as text, with the worker before it where it is on one."""
        ...

    async def look(self, path: bytes) -> Entry | None:
        """What is there, links followed; None for nothing."""
        ...

    async def matching(self, pattern: bytes) -> list[bytes]:
        """The paths that a pattern of the shell's kind stands for."""
        ...

    async def walk(self, path: bytes) -> list[Entry]:
        """Everything below a folder, each folder before what is in it."""
        ...

    async def read_link(self, path: bytes) -> bytes: ...

    async def make_folder(self, path: bytes) -> None:
        """With those above it; one that is there is fine."""
        ...

    async def make_link(self, path: bytes, target: bytes) -> None:
        """In the place of what is there, unless that is a folder."""
        ...

    async def settle(self, path: bytes, entry: Entry) -> None:
        """Give it the entry's mode and time."""
        ...

    async def replace(self, part: bytes, path: bytes) -> None: ...

    async def remove(self, path: bytes) -> None:
        """A file, which need not be there any more."""
        ...


class LocalTree:
    """This machine's files."""

    def shown(self, path: bytes) -> str:
        return _as_text(path)

    async def look(self, path: bytes) -> Entry | None:
        with self._converted(path):
            try:
                return _entry(path, b"", os.stat(path))
            except (FileNotFoundError, NotADirectoryError):
                return None

    async def matching(self, pattern: bytes) -> list[bytes]:
        return []  # the user's shell has done it already

    async def walk(self, path: bytes) -> list[Entry]:
        return await asyncio.to_thread(lambda: list(self._below(path, b"")))

    def _below(self, path: bytes, name: bytes) -> Iterator[Entry]:
        with self._converted(path), os.scandir(path) as listing:
            entries = sorted(listing, key=lambda one: one.name)
        for one in entries:
            with self._converted(one.path):
                found = _entry(
                    one.path, os.path.join(name, one.name), one.stat(follow_symlinks=False)
                )
            yield found
            if found.kind == "folder":
                yield from self._below(found.path, found.name)

    async def read_link(self, path: bytes) -> bytes:
        with self._converted(path):
            return os.readlink(path)

    async def make_folder(self, path: bytes) -> None:
        with self._converted(path):
            os.makedirs(path or b".", exist_ok=True)

    async def make_link(self, path: bytes, target: bytes) -> None:
        with self._converted(path):
            if os.path.islink(path) or os.path.isfile(path):
                os.unlink(path)
            os.symlink(target, path)

    async def settle(self, path: bytes, entry: Entry) -> None:
        with self._converted(path):
            os.chmod(path, entry.mode)
            os.utime(path, (entry.modified, entry.modified))

    async def replace(self, part: bytes, path: bytes) -> None:
        with self._converted(path):
            os.replace(part, path)

    async def remove(self, path: bytes) -> None:
        with suppress(OSError):
            os.unlink(path)

    @contextmanager
    def _converted(self, path: bytes) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise NotFound(
                "No such file",
                self.shown(path),
                hint="Name one that is there: paths are relative to the folder you are in.",
            ) from error
        except ConnectionError:  # no file's: the other side's
            raise
        except OSError as error:
            raise Usage(
                "File cannot be used",
                f"{self.shown(path)}: {error.strerror}",
                hint="Choose another place, or change who may read and write there.",
            ) from error


class RemoteTree:
    """A worker's files, over SFTP; relative paths begin at the user's home.

    After a drop of the connection the next call makes a new one.
    """

    def __init__(self, transport: SshTransport) -> None:
        self._transport = transport
        self._client: asyncssh.SFTPClient | None = None
        self._opening = asyncio.Lock()

    def shown(self, path: bytes) -> str:
        return f"{self._transport.worker}:{_as_text(path)}"

    async def look(self, path: bytes) -> Entry | None:
        client = await self._opened()
        with self._converted(path):
            try:
                return _remote_entry(path, b"", await client.stat(path or b"."))
            except (asyncssh.SFTPNoSuchFile, asyncssh.SFTPNoSuchPath, asyncssh.SFTPNotADirectory):
                return None

    async def matching(self, pattern: bytes) -> list[bytes]:
        if not any(one in pattern for one in GLOB):
            return []
        client = await self._opened()
        with self._converted(pattern):
            try:
                return [_as_bytes(one) for one in await client.glob(pattern)]
            except (asyncssh.SFTPNoSuchFile, asyncssh.SFTPNoSuchPath):
                return []

    async def walk(self, path: bytes) -> list[Entry]:
        found: list[Entry] = []
        waiting = [(path, b"")]
        client = await self._opened()
        while waiting:
            folder, name = waiting.pop()
            with self._converted(folder):
                inside = [
                    (_as_bytes(one.filename), one.attrs)
                    async for one in client.scandir(folder or b".")
                ]
            for filename, attributes in sorted(inside, key=lambda one: one[0]):
                if filename in (b".", b".."):
                    continue
                if b"/" in filename or not filename:  # it would be written elsewhere
                    raise RemoteFailed(
                        "Name cannot be",
                        f"{self.shown(folder)}: {filename!r}",
                        hint="Nothing of it was written. Look at that folder on the worker:\n"
                        "    tpuctl ssh -- ls -la",
                    )
                entry = _remote_entry(
                    posixpath.join(folder, filename), posixpath.join(name, filename), attributes
                )
                found.append(entry)
                if entry.kind == "folder":
                    waiting.append((entry.path, entry.name))
        return found

    async def read_link(self, path: bytes) -> bytes:
        client = await self._opened()
        with self._converted(path):
            return _as_bytes(await client.readlink(path))

    async def make_folder(self, path: bytes) -> None:
        if not path:
            return
        client = await self._opened()
        with self._converted(path):
            await client.makedirs(path, exist_ok=True)

    async def make_link(self, path: bytes, target: bytes) -> None:
        client = await self._opened()
        with self._converted(path):
            if await client.lexists(path):
                there = await client.lstat(path)
                if there.type != FILEXFER_TYPE_DIRECTORY:
                    await client.remove(path)
            await client.symlink(target, path)

    async def settle(self, path: bytes, entry: Entry) -> None:
        client = await self._opened()
        attributes = asyncssh.SFTPAttrs(
            permissions=entry.mode, atime=entry.modified, mtime=entry.modified
        )
        with self._converted(path):
            await client.setstat(path, attributes)

    async def replace(self, part: bytes, path: bytes) -> None:
        client = await self._opened()
        with self._converted(path):
            await client.posix_rename(part, path)

    async def remove(self, path: bytes) -> None:
        client = await self._opened()
        with suppress(asyncssh.Error):
            await client.remove(path)

    async def send(self, source: bytes, part: bytes, sent: Sent) -> int:
        """Write a local file; how many bytes it had."""
        client = await self._opened()
        count = _Count(sent)
        with self._converted(part), LocalTree()._converted(source):
            await client.put(
                source,
                part,
                follow_symlinks=True,
                sparse=False,
                block_size=BLOCK,
                max_requests=REQUESTS,
                progress_handler=count,
            )
        return count.total

    async def fetch(self, path: bytes, part: bytes, sent: Sent) -> int:
        """Read into a local file; how many bytes there were."""
        client = await self._opened()
        count = _Count(sent)
        with self._converted(path), LocalTree()._converted(part):
            await client.get(
                path,
                part,
                follow_symlinks=True,
                sparse=False,
                block_size=BLOCK,
                max_requests=REQUESTS,
                progress_handler=count,
            )
        return count.total

    async def _opened(self) -> asyncssh.SFTPClient:
        async with self._opening:
            if self._client is None:
                self._client = await self._transport.files()
            return self._client

    @contextmanager
    def _converted(self, path: bytes) -> Iterator[None]:
        where = self.shown(path)
        try:
            yield
        except (asyncssh.SFTPNoConnection, asyncssh.SFTPConnectionLost) as error:
            self._client = None
            raise Transient(
                "Connection to a worker dropped",
                where,
                hint="Repeat the command. Whether the machine still runs:\n    tpuctl status",
            ) from error
        except (asyncssh.SFTPNoSuchFile, asyncssh.SFTPNoSuchPath) as error:
            raise NotFound(
                "No such file",
                where,
                hint="Look for its name: paths on workers begin at your home there.\n"
                "    tpuctl ssh -- ls -la",
            ) from error
        except asyncssh.SFTPPermissionDenied as error:
            raise RemoteFailed(
                "No permission for a file",
                where,
                hint="Copy to your home there, or see whose it is:\n    tpuctl ssh -- ls -la",
            ) from error
        except asyncssh.SFTPError as error:
            # OpenSSH says no more than "Failure" for most: a full disk, for one.
            raise RemoteFailed(
                "Copying failed on a worker",
                f"{where}: {error.reason}",
                hint=f"See whether its disk is full:\n"
                f"    tpuctl ssh {self._transport.worker} -- df -h",
            ) from error
        except (asyncssh.Error, OSError) as error:
            self._client = None
            raise Transient(
                "Connection to a worker dropped",
                f"{where}: {error}",
                hint="Repeat the command. Whether the machine still runs:\n    tpuctl status",
            ) from error


class _Count:
    def __init__(self, sent: Sent) -> None:
        self._sent = sent
        self.total = 0

    def __call__(self, source: bytes, target: bytes, done: int, total: int) -> None:
        self.total = total
        self._sent(done)


def _as_text(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")


def _entry(path: bytes, name: bytes, found: os.stat_result) -> Entry:
    kind: Kind = "other"
    if stat.S_ISREG(found.st_mode):
        kind = "file"
    elif stat.S_ISDIR(found.st_mode):
        kind = "folder"
    elif stat.S_ISLNK(found.st_mode):
        kind = "link"
    mode = stat.S_IMODE(found.st_mode) & 0o777
    return Entry(path, name, kind, found.st_size, mode, int(found.st_mtime))


def _remote_entry(path: bytes, name: bytes, found: asyncssh.SFTPAttrs) -> Entry:
    kind = KINDS.get(found.type, "other")
    mode = (found.permissions or 0) & 0o777
    return Entry(path, name, kind, found.size or 0, mode, int(found.mtime or 0))


def _as_bytes(name: str | bytes) -> bytes:
    return os.fsencode(name)
