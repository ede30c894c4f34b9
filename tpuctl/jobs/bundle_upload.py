"""Uploads the missing chunks of a bundle, to the bucket or to the workers over SSH."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tpuctl.cloud.objects import ObjectStore, Progress
from tpuctl.cloud.threads import in_thread
from tpuctl.errors import Denied, Unreachable
from tpuctl.jobs.bundle import Bundle
from tpuctl.jobs.pack_format import (
    Index,
    groups,
    index_of,
    pack_name,
    plan,
    read_index,
    write_pack,
)
from tpuctl.jobs.pack_index_cache import PackIndexCache
from tpuctl.jobs.pack_store import BucketPackStore, PackStore, WorkerPackStore
from tpuctl.polling import gather_all
from tpuctl.remote.transport import Transport

__all__ = ["BundleUpload", "extend_bundle_lifetime", "upload_bundle"]

AT_ONCE = 4  # written or sent at the same time
ASKED_AT_ONCE = 16


@dataclass(frozen=True)
class BundleUpload:
    """The name of an uploaded bundle, and how much had to be sent."""

    name: str | None  # of its root in the bucket; None if it was sent over SSH
    sent_bytes: int  # to all destinations
    is_new: bool  # whether any chunk was missing


async def upload_bundle(
    bundle: Bundle,
    store: ObjectStore,
    transports: Mapping[int, Transport],
    scratch: Path,
    indexes: Path,
    *,
    progress: Progress | None = None,
) -> BundleUpload:
    """Upload the missing chunks of a bundle.

    To the bucket, once for all workers; if the bucket is unavailable, to each worker over SSH.
    `scratch` is an empty folder for temporary files, `indexes` a cache that persists between runs.
    Raises Conflict if a file changed since the bundle was built.
    """
    shipping = _Upload(bundle, scratch, PackIndexCache(indexes / store.name), progress)
    try:
        return await shipping.to_bucket(BucketPackStore(store))
    except (Unreachable, Denied):
        return await shipping.to_workers(
            [WorkerPackStore(transport) for transport in transports.values()]
        )


async def extend_bundle_lifetime(store: ObjectStore, name: str) -> None:
    """Renew an uploaded bundle, so that the bucket keeps it as long as a new one.

    `name` is the name of its root. Raises NotFound if that was deleted.
    """
    root = json.loads(await store.get_bytes(name))
    shelf = BucketPackStore(store)
    there = await shelf.packs()
    await gather_all(shelf.keep(pack) for pack in root["packs"] if pack in there)
    await store.touch(name)


class _Upload:
    """The upload of one bundle; packs that several destinations lack are written once."""

    def __init__(
        self, bundle: Bundle, scratch: Path, indexes: PackIndexCache, progress: Progress | None
    ) -> None:
        self._bundle = bundle
        self._scratch = scratch
        self._indexes = indexes
        self._wanted = {sha: source.size for sha, source in bundle.chunks.items()}
        self._written: dict[str, asyncio.Task[None]] = {}
        self._asking = asyncio.Semaphore(ASKED_AT_ONCE)
        self._tally = _Tally(progress)

    async def to_bucket(self, shelf: BucketPackStore) -> BundleUpload:
        packs = await shelf.packs()
        self._indexes.keep(packs)
        name, sent_bytes, is_new = await self._to(shelf, packs)
        return BundleUpload(name, sent_bytes, is_new)

    async def to_workers(self, shelves: list[WorkerPackStore]) -> BundleUpload:
        self._tally.restart()

        async def upload(shelf: WorkerPackStore) -> tuple[str, int, bool]:
            return await self._to(shelf, await shelf.packs())

        done = await gather_all(upload(shelf) for shelf in shelves)
        return BundleUpload(None, sum(size for _, size, _ in done), any(new for _, _, new in done))

    async def _to(self, shelf: PackStore, packs: set[str]) -> tuple[str, int, bool]:
        there = dict(
            zip(packs, await gather_all(self._index(shelf, p) for p in packs), strict=True)
        )
        indexes = {pack: index for pack, index in there.items() if index is not None}
        use, send = plan(self._wanted, indexes)
        while missing := await self._gone(shelf, use):
            indexes = {pack: index for pack, index in indexes.items() if pack not in missing}
            use, send = plan(self._wanted, indexes)
        self._tally.expect(sum(send.values()))
        slots = asyncio.Semaphore(AT_ONCE)
        sent_packs = await gather_all(self._send(shelf, group, slots) for group in groups(send))
        root = {
            "version": 1,
            "manifest": [sha.hex() for sha in self._bundle.manifest],
            "packs": sorted([*use, *(pack for pack, _ in sent_packs)]),
        }
        text = json.dumps(root).encode()
        name = await shelf.put_root(self._bundle.digest, text)
        return name, sum(size for _, size in sent_packs) + len(text), bool(sent_packs)

    async def _index(self, shelf: PackStore, pack: str) -> Index | None:
        """The index of a pack; None if it is corrupt."""
        cached = self._indexes.get(pack)
        if cached is None:
            async with self._asking:
                index = await shelf.index(pack)
            cached = read_index(pack, index)
            if cached is not None:
                self._indexes.put(pack, index)
        return cached

    async def _gone(self, shelf: PackStore, packs: tuple[str, ...]) -> set[str]:
        are_there = await gather_all(shelf.keep(pack) for pack in packs)
        return {pack for pack, is_there in zip(packs, are_there, strict=True) if not is_there}

    async def _send(
        self, shelf: PackStore, chunks: Index, slots: asyncio.Semaphore
    ) -> tuple[str, int]:
        """Send a pack, written once for all destinations; returns its name and size."""
        index = index_of(chunks)
        pack = pack_name(index)
        path = self._scratch / pack
        async with slots:
            if pack not in self._written:
                writing = in_thread(write_pack, path, chunks, self._bundle.chunks)
                self._written[pack] = asyncio.ensure_future(writing)
            await self._written[pack]
            await shelf.put(pack, path, self._tally.part(sum(chunks.values())))
        self._indexes.put(pack, index)
        return pack, path.stat().st_size


class _Tally:
    """Adds up the progress of parallel uploads."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._done: dict[int, int] = {}
        self._size = 0

    def restart(self) -> None:
        self._done, self._size = {}, 0

    def expect(self, size: int) -> None:
        self._size += size

    def part(self, weight: int) -> Callable[[int, int], None]:
        """A progress callback for one part; `weight` is its uncompressed size."""
        number = len(self._done)
        self._done[number] = 0

        def show(done: int, size: int) -> None:
            self._done[number] = weight * done // max(1, size)
            if self._progress is not None:
                self._progress(sum(list(self._done.values())), self._size)

        return show
