"""Copying files and folders between this machine and workers, one or all of them."""

from __future__ import annotations

import asyncio
import hashlib
import os
import posixpath
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from tpuctl.engine.step import step
from tpuctl.errors import Diagnostic, NotFound, RemoteFailed, TpuctlError, Transient, Usage
from tpuctl.model.copy_path import FORMS, Copying
from tpuctl.model.events import Emit, Warned
from tpuctl.polling import Backoff, Clock, SystemClock
from tpuctl.remote.ssh import SshTransport
from tpuctl.remote.trees import Entry, LocalTree, RemoteTree, Tree

__all__ = ["Copied", "copy"]

T = TypeVar("T")
P = ParamSpec("P")
WORKERS, FILES = 8, 8  # at a time, the latter on each worker: they bound the memory
TRIES, AGAIN = 6, Backoff(first=0.2, most=5.0, factor=2.0)
LEAVE_SECONDS = 5.0  # for what is left of a file that will not be whole
TELL_SECONDS = 0.2  # between two words about how far it is


@dataclass(frozen=True)
class Copied:
    """What one worker was sent, or sent."""

    worker: int
    files: int
    bytes: int


@dataclass(frozen=True)
class _Sum:
    files: int
    bytes: int


@dataclass(frozen=True)
class _Parcel:
    """Something named to be copied, with all that is below it."""

    root: Entry
    inside: tuple[Entry, ...]

    @property
    def name(self) -> bytes:
        """Its own name; empty where only what is in it is to be copied, as of `.`."""
        last = posixpath.basename(self.root.path.rstrip(b"/"))
        return b"" if last in (b"", b".", b"..") else last

    def of_kind(self, kind: str) -> list[Entry]:
        return [one for one in (self.root, *self.inside) if one.kind == kind]


async def copy(
    wanted: Copying,
    transports: Mapping[int, SshTransport],
    emit: Emit,
    *,
    recursive: bool = False,
    clock: Clock | None = None,
) -> list[Copied]:
    """Copy to or from each of these workers; what was copied, by worker.

    What comes from several workers lands in a folder `worker-N` for each. Modes and times are
    kept, links stay links below a folder. A dropped connection is made anew and the file begun
    again; a file is in its place only whole. Raises the first worker's failure once all have
    ended, and tells the others.
    """
    clock = clock or SystemClock()
    here = LocalTree()
    sources = [os.fsencode(one) for one in wanted.sources]
    target = os.fsencode(wanted.target)
    parcels = await _collect(here, sources, recursive, emit) if wanted.is_upload else None
    turn = asyncio.Semaphore(WORKERS)

    async def one(worker: int, transport: SshTransport) -> Copied:
        there = RemoteTree(transport)
        async with turn:
            with step(emit, f"copy/worker-{worker}", "copy", clock=clock) as told:
                if parcels is not None:
                    work = _Work(here, there, there.send, told.moved, clock)
                    done = await work.carry(parcels, target)
                else:
                    found = await _again(clock, _collect, there, sources, recursive, emit)
                    into = target if wanted.worker is not None else _of_worker(target, worker)
                    work = _Work(there, here, there.fetch, told.moved, clock)
                    done = await work.carry(found, into)
                told.result = f"{_count(done.files, 'file')}, {_size(done.bytes)}"
                return Copied(worker, done.files, done.bytes)

    outcomes = await asyncio.gather(
        *(one(*each) for each in transports.items()), return_exceptions=True
    )
    failures = [each for each in outcomes if isinstance(each, BaseException)]
    for each in failures[1:]:
        if not isinstance(each, TpuctlError):
            raise each
        for diagnostic in each.diagnostics:
            emit(Warned(diagnostic, is_error=True))
    if failures:
        raise failures[0]
    return [each for each in outcomes if isinstance(each, Copied)]


def _of_worker(target: bytes, worker: int) -> bytes:
    return posixpath.join(target, b"worker-%d" % worker, b"")


async def _collect(
    tree: Tree, paths: Sequence[bytes], recursive: bool, emit: Emit
) -> list[_Parcel]:
    found = []
    for path in paths:
        root = await tree.look(path)
        if root is not None:
            found.append(await _parcel(tree, root, recursive, emit))
            continue
        matching = await tree.matching(path)
        if not matching:
            is_mistyped = isinstance(tree, LocalTree) and b":" in path
            raise NotFound("No such file", tree.shown(path), hint=FORMS if is_mistyped else "")
        for each in sorted(matching):
            if (root := await tree.look(each)) is not None:
                found.append(await _parcel(tree, root, recursive, emit))
    return found


async def _parcel(tree: Tree, root: Entry, recursive: bool, emit: Emit) -> _Parcel:
    if root.kind == "folder":
        if not recursive:
            raise Usage(
                "It is a folder", tree.shown(root.path), hint="Copy it whole with -r.", where="-r"
            )
        inside = await tree.walk(root.path)
        for one in inside:
            if one.kind == "other":
                emit(
                    Warned(
                        Diagnostic(
                            "Not copied",
                            f"{tree.shown(one.path)} is no file, folder or link",
                            hint="Devices, sockets and pipes are left out; all else was copied.",
                        )
                    )
                )
        return _Parcel(root, tuple(inside))
    if root.kind != "file":
        raise Usage(
            "It is no file",
            tree.shown(root.path),
            hint="Name a file, a folder or a link: devices, sockets and pipes are not copied.",
        )
    return _Parcel(root, ())


@dataclass
class _Work:
    """The way from one tree to another."""

    source: Tree
    target: Tree
    move: Callable[[bytes, bytes, Callable[[int], None]], Awaitable[int]]
    tell: Callable[[int, int, str], None]
    clock: Clock

    async def carry(self, parcels: Sequence[_Parcel], target: bytes) -> _Sum:
        placed = [
            (parcel, await self._again(self._place, parcel, target, len(parcels) > 1))
            for parcel in parcels
        ]
        for parcel, path in placed:
            for folder in parcel.of_kind("folder"):
                await self._again(self.target.make_folder, _below(path, folder))
        files = [
            (file, _below(path, file)) for parcel, path in placed for file in parcel.of_kind("file")
        ]
        progress = _Progress(sum(file.size for file, _ in files), self.tell, self.clock)
        waiting = iter(files)

        async def some() -> None:
            for file, path in waiting:
                await self._again(self._file, file, path, progress)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(FILES):
                    group.create_task(some())
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        for parcel, path in placed:
            # Links last: nothing is written through one. Then folders, which may be read-only.
            for link in parcel.of_kind("link"):
                await self._again(self._link, link, _below(path, link))
            for folder in reversed(parcel.of_kind("folder")):
                if parcel.name or folder.name:  # what was there before stays as it was
                    await self._again(self.target.settle, _below(path, folder), folder)
        return _Sum(len(files), progress.done)

    async def _place(self, parcel: _Parcel, target: bytes, is_one_of_several: bool) -> bytes:
        """Where it is to be: in the target if that is a folder, else in its place."""
        there = await self.target.look(target)
        if there is not None and there.kind == "folder":
            return posixpath.join(target, parcel.name)
        if target.endswith(b"/"):
            await self.target.make_folder(target)
            return posixpath.join(target, parcel.name)
        if is_one_of_several:
            raise Usage(
                "Not a folder",
                self.target.shown(target),
                hint="End it with / to have the folder made.",
            )
        if there is not None and parcel.root.kind == "folder":
            raise Usage(
                "A file is where a folder is to be",
                self.target.shown(target),
                hint="Copy to another place, or delete or rename that file first.",
            )
        if above := posixpath.dirname(target):
            await self.target.make_folder(above)
        return target

    async def _file(self, file: Entry, path: bytes, progress: _Progress) -> None:
        # A name of the same length for all, since the longest that can be may be taken up.
        other = b".tpuctl-" + hashlib.sha256(path).hexdigest()[:16].encode()
        part = posixpath.join(posixpath.dirname(path), other)
        count = progress.of_file(file)
        try:
            size = await self.move(file.path, part, count)
            written = await self.target.look(part)
            if written is None or written.size != size:
                has = "nothing" if written is None else f"{written.size} bytes"
                raise RemoteFailed(
                    "Copy is not whole",
                    f"{self.target.shown(path)}: {has} arrived of {size} bytes",
                    hint=(
                        "Repeat the command: what was copied whole is not sent again. "
                        "Whether the disk is full:\n"
                        "    tpuctl ssh --all-workers -- df -h"
                    ),
                )
            await self.target.settle(part, file)
            await self.target.replace(part, path)
        except Transient:
            count(0)
            raise
        except BaseException:
            with suppress(TpuctlError, TimeoutError):
                await asyncio.wait_for(self.target.remove(part), LEAVE_SECONDS)
            raise

    async def _link(self, link: Entry, path: bytes) -> None:
        await self.target.make_link(path, await self.source.read_link(link.path))

    async def _again(
        self, function: Callable[P, Awaitable[T]], *args: P.args, **more: P.kwargs
    ) -> T:
        return await _again(self.clock, function, *args, **more)


class _Progress:
    """Tells now and then how much has arrived, and how fast."""

    def __init__(self, total: int, tell: Callable[[int, int, str], None], clock: Clock) -> None:
        self.done = 0
        self._total = total
        self._tell = tell
        self._clock = clock
        self._began = self._told = clock.now()

    def of_file(self, file: Entry) -> Callable[[int], None]:
        """To be told how much of one file has arrived; another one begins it again."""
        arrived = 0

        def count(done: int) -> None:
            nonlocal arrived
            self.done += done - arrived
            arrived = done
            now = self._clock.now()
            if now - self._told >= TELL_SECONDS:
                self._told = now
                rate = self.done / max(now - self._began, 1e-9)
                total = max(self._total, self.done, 1)  # a file may have grown
                said = f"{_size(self.done)} of {_size(total)}, {_size(rate)}/s"
                self._tell(self.done, total, said)

        return count


async def _again(
    clock: Clock, function: Callable[P, Awaitable[T]], *args: P.args, **more: P.kwargs
) -> T:
    """Once more, and once more, while the connection drops."""
    delays = AGAIN.delays()
    for _ in range(TRIES - 1):
        try:
            return await function(*args, **more)
        except Transient:
            await clock.sleep(next(delays))
    return await function(*args, **more)


def _below(path: bytes, entry: Entry) -> bytes:
    return posixpath.join(path, entry.name) if entry.name else path


def _size(size: float) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 1e5 else f"{size / 1e3:,.1f} kB"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
