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
    encode_index,
    group_chunks,
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

MAX_PARALLEL_PACKS = 4  # written or sent at the same time
MAX_PARALLEL_REQUESTS = 16


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
    upload = _Upload(bundle, scratch, PackIndexCache(indexes / store.name), progress)
    try:
        return await upload.to_bucket(BucketPackStore(store))
    except (Unreachable, Denied):
        return await upload.to_workers(
            [WorkerPackStore(transport) for transport in transports.values()]
        )


async def extend_bundle_lifetime(store: ObjectStore, name: str) -> None:
    """Renew an uploaded bundle, so that the bucket keeps it as long as a new one.

    `name` is the name of its root. Raises NotFound if that was deleted.
    """
    root = json.loads(await store.get_bytes(name))
    pack_store = BucketPackStore(store)
    existing = await pack_store.packs()
    await gather_all(pack_store.renew(pack) for pack in root["packs"] if pack in existing)
    await store.touch(name)


class _Upload:
    """The upload of one bundle; packs that several destinations lack are written once."""

    def __init__(
        self, bundle: Bundle, scratch: Path, indexes: PackIndexCache, progress: Progress | None
    ) -> None:
        self._bundle = bundle
        self._scratch = scratch
        self._indexes = indexes
        self._chunk_sizes = {sha: source.size for sha, source in bundle.chunks.items()}
        self._written: dict[str, asyncio.Task[None]] = {}
        self._request_slots = asyncio.Semaphore(MAX_PARALLEL_REQUESTS)
        self._progress = _TotalProgress(progress)

    async def to_bucket(self, store: BucketPackStore) -> BundleUpload:
        packs = await store.packs()
        self._indexes.retain(packs)
        name, sent_bytes, is_new = await self._upload_to(store, packs)
        return BundleUpload(name, sent_bytes, is_new)

    async def to_workers(self, stores: list[WorkerPackStore]) -> BundleUpload:
        self._progress.restart()

        async def upload(store: WorkerPackStore) -> tuple[str, int, bool]:
            return await self._upload_to(store, await store.packs())

        results = await gather_all(upload(store) for store in stores)
        sizes = [size for _, size, _ in results]
        return BundleUpload(None, sum(sizes), any(is_new for _, _, is_new in results))

    async def _upload_to(self, store: PackStore, packs: set[str]) -> tuple[str, int, bool]:
        existing = dict(
            zip(packs, await gather_all(self._index(store, p) for p in packs), strict=True)
        )
        indexes = {pack: index for pack, index in existing.items() if index is not None}
        use, send = plan(self._chunk_sizes, indexes)
        while missing := await self._find_missing(store, use):
            indexes = {pack: index for pack, index in indexes.items() if pack not in missing}
            use, send = plan(self._chunk_sizes, indexes)
        self._progress.add_size(sum(send.values()))
        slots = asyncio.Semaphore(MAX_PARALLEL_PACKS)
        sent_packs = await gather_all(
            self._send(store, group, slots) for group in group_chunks(send)
        )
        root = {
            "version": 1,
            "manifest": [sha.hex() for sha in self._bundle.manifest],
            "packs": sorted([*use, *(pack for pack, _ in sent_packs)]),
        }
        text = json.dumps(root).encode()
        name = await store.put_root(self._bundle.digest, text)
        return name, sum(size for _, size in sent_packs) + len(text), bool(sent_packs)

    async def _index(self, store: PackStore, pack: str) -> Index | None:
        """The index of a pack; None if it is corrupt."""
        cached = self._indexes.get(pack)
        if cached is None:
            async with self._request_slots:
                index = await store.index(pack)
            cached = read_index(pack, index)
            if cached is not None:
                self._indexes.put(pack, index)
        return cached

    async def _find_missing(self, store: PackStore, packs: tuple[str, ...]) -> set[str]:
        renewed = await gather_all(store.renew(pack) for pack in packs)
        return {pack for pack, is_renewed in zip(packs, renewed, strict=True) if not is_renewed}

    async def _send(
        self, store: PackStore, chunks: Index, slots: asyncio.Semaphore
    ) -> tuple[str, int]:
        """Send a pack, written once for all destinations; returns its name and size."""
        index = encode_index(chunks)
        pack = pack_name(index)
        path = self._scratch / pack
        async with slots:
            if pack not in self._written:
                writing = in_thread(write_pack, path, chunks, self._bundle.chunks)
                self._written[pack] = asyncio.ensure_future(writing)
            await self._written[pack]
            await store.put(pack, path, self._progress.part(sum(chunks.values())))
        self._indexes.put(pack, index)
        return pack, path.stat().st_size


class _TotalProgress:
    """Adds up the progress of parallel uploads."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._done: dict[int, int] = {}
        self._size = 0

    def restart(self) -> None:
        self._done, self._size = {}, 0

    def add_size(self, size: int) -> None:
        self._size += size

    def part(self, weight: int) -> Callable[[int, int], None]:
        """A progress callback for one part; `weight` is its uncompressed size."""
        number = len(self._done)
        self._done[number] = 0

        def report(done: int, size: int) -> None:
            self._done[number] = weight * done // max(1, size)
            if self._progress is not None:
                self._progress(sum(list(self._done.values())), self._size)

        return report
