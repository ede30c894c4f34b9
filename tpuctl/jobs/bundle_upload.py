"""Uploads what is missing of a bundle, to the bucket or to the workers over SSH."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tpuctl.cloud.objects import ObjectStore, Progress
from tpuctl.cloud.threads import in_thread
from tpuctl.errors import Conflict, Denied, NotFound, Unreachable
from tpuctl.jobs.archives import (
    Archive,
    choose_archives,
    encode_record,
    read_record,
    write_archive,
)
from tpuctl.jobs.bundle import Bundle
from tpuctl.model.text.names import BUNDLES
from tpuctl.polling import gather_all
from tpuctl.remote.transport import Transport

RECORD_SUFFIX = ".json.gz"
MAX_READ_RECORDS = 8  # of other bundles, the latest ones, whose archives may contain the same files
MAX_PARALLEL_UPLOADS = 2
WORKER_FOLDER = ".tpuctl/bundles"
RENEWAL_AGE = timedelta(days=10)  # the bucket deletes bundles after thirty


@dataclass(frozen=True)
class BundleUpload:
    """The name of an uploaded bundle, and how much had to be sent."""

    name: str | None  # of its record in the bucket; None if it was sent over SSH
    sent_bytes: int  # to all destinations; zero if nothing was missing


def record_name(bundle: Bundle) -> str:
    """The name of the bundle's record in the bucket."""
    return f"{BUNDLES}/{bundle.digest}{RECORD_SUFFIX}"


async def upload_bundle(
    bundle: Bundle,
    store: ObjectStore,
    transports: Mapping[int, Transport],
    scratch: Path,
    *,
    progress: Progress | None = None,
) -> BundleUpload:
    """Upload the archives of a bundle that are missing, and its record.

    To the bucket, once for all workers; if the bucket is unavailable and there are workers, to each
    over SSH. `scratch` is an empty folder for temporary files. Raises Conflict if a file changed
    since the bundle was built.
    """
    try:
        sent_bytes = await _Upload(bundle, scratch, progress).send_to(_BucketFolder(store))
        return BundleUpload(record_name(bundle), sent_bytes)
    except (Unreachable, Denied):
        if not transports:
            raise
        upload = _Upload(bundle, scratch, progress)
        folders = map(_WorkerFolder, transports.values())
        sizes = await gather_all(upload.send_to(folder) for folder in folders)
        return BundleUpload(None, sum(sizes))


async def extend_bundle_lifetime(store: ObjectStore, name: str) -> None:
    """Renew an uploaded bundle, so that the bucket keeps it as long as a new one.

    `name` is the name of its record. Raises NotFound if that was deleted.
    """
    archives = read_record(await store.get_bytes(name))
    folder = _BucketFolder(store)
    await folder.names()
    await folder.renew(archive.name for archive in archives)
    await store.touch(name)


class _BucketFolder:
    """Objects below one prefix of the bucket, from which all workers download."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._updated: dict[str, datetime] = {}

    async def names(self) -> list[str]:
        """The names of all files, the latest ones first."""
        objects = await self._store.list(BUNDLES + "/")
        self._updated = {info.name.rpartition("/")[2]: info.updated for info in objects}
        return sorted(self._updated, key=lambda name: self._updated[name], reverse=True)

    async def read(self, name: str) -> bytes:
        """A file's content; empty if it was deleted meanwhile."""
        with suppress(NotFound):
            return await self._store.get_bytes(f"{BUNDLES}/{name}")
        return b""

    async def put(self, name: str, source: bytes | Path, progress: Progress | None) -> None:
        if isinstance(source, bytes):
            await self._store.put_bytes(f"{BUNDLES}/{name}", source)
        else:
            await self._store.put_file(f"{BUNDLES}/{name}", source, progress=progress)

    async def renew(self, names: Iterable[str]) -> None:
        """Have existing files kept as long as a job may need them."""

        async def touch(name: str) -> None:
            with suppress(Conflict, NotFound):  # another client renews it; workers report the loss
                await self._store.touch(f"{BUNDLES}/{name}")

        oldest = datetime.now(UTC) - RENEWAL_AGE
        await gather_all(touch(name) for name in names if self._updated.get(name, oldest) < oldest)


class _WorkerFolder:
    """The same on a worker's disk: its cache, from which only that worker unpacks."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def names(self) -> list[str]:
        result = await self._transport.run(["sh", "-c", f"ls -t {WORKER_FOLDER} 2>/dev/null || :"])
        subject = f"worker {self._transport.name}: listing bundles"
        return result.check(subject).stdout.decode().split()

    async def read(self, name: str) -> bytes:
        result = await self._transport.run(["cat", f"{WORKER_FOLDER}/{name}"])
        return result.stdout if result.exit_code == 0 else b""

    async def put(self, name: str, source: bytes | Path, progress: Progress | None) -> None:
        path = f"{WORKER_FOLDER}/{name}"
        await self._transport.put(source, path, mode=0o600, progress=progress)

    async def renew(self, names: Iterable[str]) -> None:
        """The worker evicts nothing that it is about to use."""


class _Upload:
    """The upload of one bundle; archives that several destinations lack are written once."""

    def __init__(self, bundle: Bundle, scratch: Path, progress: Progress | None) -> None:
        self._bundle = bundle
        self._scratch = scratch
        self._writing = asyncio.Lock()
        self._progress = _TotalProgress(progress)

    async def send_to(self, folder: _BucketFolder | _WorkerFolder) -> int:
        """Upload to one destination; returns the bytes sent."""
        names = await folder.names()
        record_name = self._bundle.digest + RECORD_SUFFIX
        if record_name in names:
            latest = [record_name]
        else:
            records = [name for name in names if name.endswith(RECORD_SUFFIX)]
            latest = records[:MAX_READ_RECORDS]
        contents = await gather_all(folder.read(name) for name in latest)
        listed = {archive for content in contents for archive in read_record(content)}
        existing = [archive for archive in listed if archive.name in names]
        archives = choose_archives(self._bundle.sources, existing)
        await folder.renew([record_name, *(archive.name for archive in archives)])
        missing = [archive for archive in archives if archive.name not in names]
        self._progress.size += sum(archive.size for archive in missing)
        slots = asyncio.Semaphore(MAX_PARALLEL_UPLOADS)
        sizes = await gather_all(self._send(folder, archive, slots) for archive in missing)
        record = encode_record(self._bundle, archives)
        if record not in contents:
            await folder.put(record_name, record, None)
            sizes.append(len(record))
        return sum(sizes)

    async def _send(
        self, folder: _BucketFolder | _WorkerFolder, archive: Archive, slots: asyncio.Semaphore
    ) -> int:
        path = self._scratch / archive.name
        async with slots:
            async with self._writing:
                if not path.exists():
                    await in_thread(write_archive, path, archive, self._bundle.sources)
            await folder.put(archive.name, path, self._progress.part(archive.size))
        return path.stat().st_size


class _TotalProgress:
    """Adds up the progress of parallel uploads, in bytes before compression."""

    def __init__(self, report: Progress | None) -> None:
        self.size = 0
        self._report = report
        self._done: list[int] = []

    def part(self, weight: int) -> Progress:
        """A progress callback for one part, which is `weight` bytes of the total."""
        number = len(self._done)
        self._done.append(0)

        def report(done: int, size: int) -> None:
            self._done[number] = weight * done // max(1, size)
            if self._report is not None:
                self._report(sum(self._done), self.size)

        return report
