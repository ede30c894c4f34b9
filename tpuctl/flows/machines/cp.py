"""Copy files and folders between this machine and one or all workers."""

from __future__ import annotations

import asyncio
import hashlib
import os
import posixpath
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import ParamSpec, TypeVar

from tpuctl.engine.step import step
from tpuctl.errors import Diagnostic, NotFound, RemoteFailed, TpuctlError, Transient, Usage
from tpuctl.model.events import Emit, WarningIssued
from tpuctl.model.workers.copy_path import CopyRequest
from tpuctl.polling import Backoff, Clock, SystemClock
from tpuctl.remote.ssh import SshTransport
from tpuctl.remote.trees import Entry, LocalTree, RemoteTree, Tree
from tpuctl.units import counted, decimal_size, transferred

T = TypeVar("T")
P = ParamSpec("P")
WORKERS, FILES = 8, 8  # in parallel, FILES per worker: bounds the memory used
MAX_TRIES, RETRY_BACKOFF = 6, Backoff(initial=0.2, maximum=5.0, multiplier=2.0)
CLEANUP_SECONDS = 5.0  # to delete a partial file
REPORT_SECONDS = 0.2  # between progress reports


@dataclass(frozen=True)
class CopyResult:
    """What was copied to or from one worker."""

    worker: int
    files: int
    bytes: int
    slice: int | None = None  # of a stack of several slices


@dataclass(frozen=True)
class _Totals:
    files: int
    bytes: int


@dataclass(frozen=True)
class _Item:
    """A file or folder to copy, with everything below it."""

    root: Entry
    inside: tuple[Entry, ...]

    @property
    def name(self) -> bytes:
        """Its base name; empty if only its content is to be copied, as for `.`."""
        last = posixpath.basename(self.root.path.rstrip(b"/"))
        return b"" if last in (b"", b".", b"..") else last

    def of_kind(self, kind: str) -> list[Entry]:
        return [entry for entry in (self.root, *self.inside) if entry.kind == kind]


async def copy(
    request: CopyRequest,
    transports: Mapping[int, SshTransport],
    emit: Emit,
    *,
    recursive: bool = False,
    clock: Clock | None = None,
) -> list[CopyResult]:
    """Copy to or from each of these workers; return what was copied, by worker.

    Downloads from several workers go to one folder `worker-N` each. Modes and times are
    preserved, and so are links below a folder; of downloads, only those that stay in it. A file is
    retried after a dropped connection, and replaced atomically. Once all workers have ended, the
    first failure is raised and the others are emitted.
    """
    clock = clock or SystemClock()
    local_tree = LocalTree()
    sources = [os.fsencode(source) for source in request.sources]
    target = os.fsencode(request.target)
    local_items = (
        await _collect(local_tree, sources, recursive, emit) if request.is_upload else None
    )
    semaphore = asyncio.Semaphore(WORKERS)

    async def copy_worker(worker: int, transport: SshTransport) -> CopyResult:
        remote_tree = RemoteTree(transport)
        async with semaphore:
            with step(emit, f"copy/worker-{transport.name}", "copy", clock=clock) as copy_step:
                if local_items is not None:
                    transfer = _Transfer(
                        local_tree,
                        remote_tree,
                        remote_tree.send,
                        copy_step.report_bytes,
                        clock,
                        emit,
                    )
                    totals = await transfer.run(local_items, target)
                else:
                    items = await _retry(clock, _collect, remote_tree, sources, recursive, emit)
                    worker_target = (
                        target
                        if request.worker is not None
                        else posixpath.join(target, b"worker-" + transport.name.encode(), b"")
                    )
                    download_tree = LocalTree(_download_root(target))
                    fetch = partial(remote_tree.fetch, download_tree)
                    transfer = _Transfer(
                        remote_tree, download_tree, fetch, copy_step.report_bytes, clock, emit
                    )
                    totals = await transfer.run(items, worker_target)
                copy_step.result = f"{counted(totals.files, 'file')}, {decimal_size(totals.bytes)}"
                return CopyResult(worker, totals.files, totals.bytes, transport.slice)

    outcomes = await asyncio.gather(
        *(copy_worker(*item) for item in transports.items()), return_exceptions=True
    )
    failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    for failure in failures[1:]:
        if not isinstance(failure, TpuctlError):
            raise failure
        for diagnostic in failure.diagnostics:
            emit(WarningIssued(diagnostic, is_error=True))
    if failures:
        raise failures[0]
    return [outcome for outcome in outcomes if isinstance(outcome, CopyResult)]


def _download_root(target: bytes) -> bytes:
    """The folder below which a download writes nothing through links.

    The target itself may be a link: the user has named it, not the worker.
    """
    folder = target.rstrip(b"/") or target[:1]
    return folder if os.path.isdir(target) else posixpath.dirname(folder)  # noqa: PTH112 - bytes


async def _collect(tree: Tree, paths: Sequence[bytes], recursive: bool, emit: Emit) -> list[_Item]:
    items = []
    for path in paths:
        root = await tree.stat(path)
        if root is not None:
            items.append(await _item(tree, root, recursive, emit))
            continue
        matching = await tree.glob(path)
        if not matching:
            raise NotFound(
                "No such file",
                tree.display(path),
                hint="Local paths are relative to the current folder, paths on a worker to its "
                "home:\n    tpuctl ssh -- ls -la",
            )
        for match in sorted(matching):
            if (root := await tree.stat(match)) is not None:
                items.append(await _item(tree, root, recursive, emit))
    return items


async def _item(tree: Tree, root: Entry, recursive: bool, emit: Emit) -> _Item:
    if root.kind == "folder":
        if not recursive:
            raise Usage(
                "Is a folder", tree.display(root.path), hint="Copy folders with -r.", where="-r"
            )
        inside = await tree.walk(root.path)
        for entry in inside:
            if entry.kind == "other":
                emit(
                    WarningIssued(
                        Diagnostic(
                            "Not copied",
                            f"{tree.display(entry.path)} is not a file, folder or link",
                            hint="Devices, sockets and pipes are skipped; all else is copied.",
                        )
                    )
                )
        return _Item(root, tuple(inside))
    if root.kind != "file":
        raise Usage(
            "Not a file",
            tree.display(root.path),
            hint="Pass a file, folder or link: devices, sockets and pipes are not copied.",
        )
    return _Item(root, ())


@dataclass
class _Transfer:
    """A transfer from one file tree to another."""

    source: Tree
    target: Tree
    move: Callable[[bytes, bytes, Callable[[int], None]], Awaitable[int]]
    report: Callable[[int, int, str], None]
    clock: Clock
    emit: Emit

    async def run(self, items: Sequence[_Item], target: bytes) -> _Totals:
        destinations = [
            (item, await self._retry(self._destination, item, target, len(items) > 1))
            for item in items
        ]
        for parcel, path in destinations:
            for folder in parcel.of_kind("folder"):
                await self._retry(self.target.make_folder, _below(path, folder))
        files = [
            (file, _below(path, file))
            for parcel, path in destinations
            for file in parcel.of_kind("file")
        ]
        progress = _Progress(sum(file.size for file, _ in files), self.report, self.clock)
        queue = iter(files)

        async def copy_files() -> None:
            for file, path in queue:
                await self._retry(self._file, file, path, progress)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(FILES):
                    group.create_task(copy_files())
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        for parcel, path in destinations:
            # Links after files: nothing is written through a link. Folders last, since their modes
            # may be read-only.
            for link in parcel.of_kind("link"):
                await self._retry(self._link, link, _below(path, link))
            for folder in reversed(parcel.of_kind("folder")):
                if parcel.name or folder.name:  # an existing target folder keeps its mode
                    await self._retry(self.target.set_attributes, _below(path, folder), folder)
        return _Totals(len(files), progress.done)

    async def _destination(self, item: _Item, target: bytes, is_among_several: bool) -> bytes:
        """The destination path: inside the target if that is a folder, otherwise the target."""
        existing = await self.target.stat(target)
        if existing is not None and existing.kind == "folder":
            return posixpath.join(target, item.name)
        if target.endswith(b"/"):
            await self.target.make_folder(target)
            return posixpath.join(target, item.name)
        if is_among_several:
            raise Usage(
                "Not a folder",
                self.target.display(target),
                hint="Append / to create the folder.",
            )
        if existing is not None and item.root.kind == "folder":
            raise Usage(
                "Target is a file",
                self.target.display(target),
                hint="A folder cannot replace a file. Choose another target, or delete or rename "
                "the file first.",
            )
        if parent := posixpath.dirname(target):
            await self.target.make_folder(parent)
        return target

    async def _file(self, file: Entry, path: bytes, progress: _Progress) -> None:
        # A name of fixed length: the file's name may already have the maximum length.
        temporary_name = b".tpuctl-" + hashlib.sha256(path).hexdigest()[:16].encode()
        partial = posixpath.join(posixpath.dirname(path), temporary_name)
        count = progress.of_file(file)
        try:
            size = await self.move(file.path, partial, count)
            written = await self.target.stat(partial)
            if written is None or written.size != size:
                has = "nothing" if written is None else f"{written.size} bytes"
                raise RemoteFailed(
                    "Incomplete copy",
                    f"{self.target.display(path)}: {has} of {size} bytes arrived",
                    hint=(
                        "Check the free disk space, then repeat the command:\n"
                        "    tpuctl ssh --all-workers -- df -h"
                    ),
                )
            await self.target.set_attributes(partial, file)
            await self.target.replace(partial, path)
        except Transient:
            count(0)
            raise
        except BaseException:
            with suppress(TpuctlError, TimeoutError):
                await asyncio.wait_for(self.target.remove(partial), CLEANUP_SECONDS)
            raise

    async def _link(self, link: Entry, path: bytes) -> None:
        link_target = await self.source.read_link(link.path)
        if isinstance(self.target, LocalTree) and not _stays_inside(link, link_target):
            detail = f"{self.source.display(link.path)} is a link out of the copied folder"
            hint = "Programs on this computer would follow it. Copy what it points to instead."
            self.emit(WarningIssued(Diagnostic("Not copied", detail, hint)))
            return
        await self.target.make_link(path, link_target)

    async def _retry(
        self, function: Callable[P, Awaitable[T]], *args: P.args, **more: P.kwargs
    ) -> T:
        return await _retry(self.clock, function, *args, **more)


class _Progress:
    """Reports at intervals how much has been copied, and the transfer rate."""

    def __init__(self, total: int, report: Callable[[int, int, str], None], clock: Clock) -> None:
        self.done = 0
        self._total = total
        self._report = report
        self._clock = clock
        self._began = self._last_report = clock.now()

    def of_file(self, file: Entry) -> Callable[[int], None]:
        """A callback for the bytes of one file; a retry starts again from 0."""
        arrived = 0

        def count(done: int) -> None:
            nonlocal arrived
            self.done += done - arrived
            arrived = done
            now = self._clock.now()
            if now - self._last_report >= REPORT_SECONDS:
                self._last_report = now
                rate = self.done / max(now - self._began, 1e-9)
                total = max(self._total, self.done, 1)  # a file may have grown
                text = f"{transferred(self.done, total)}, {decimal_size(rate)}/s"
                self._report(self.done, total, text)

        return count


async def _retry(
    clock: Clock, function: Callable[P, Awaitable[T]], *args: P.args, **more: P.kwargs
) -> T:
    """Call the function, retrying with backoff after dropped connections."""
    delays = RETRY_BACKOFF.delays()
    for _ in range(MAX_TRIES - 1):
        try:
            return await function(*args, **more)
        except Transient:
            await clock.sleep(next(delays))
    return await function(*args, **more)


def _stays_inside(link: Entry, target: bytes) -> bool:
    """Whether a link leads to the folder that it was copied with, whatever other links there are:
    `..` stands only at the beginning, where it means the real parents of the link."""
    parts = [part for part in target.split(b"/") if part not in (b"", b".")]
    ups = sum(1 for _ in takewhile(lambda part: part == b"..", parts))
    return not target.startswith(b"/") and ups <= link.name.count(b"/") and b".." not in parts[ups:]


def _below(path: bytes, entry: Entry) -> bytes:
    return posixpath.join(path, entry.name) if entry.name else path
