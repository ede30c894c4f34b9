"""Destinations of bundles: the bucket, or a worker's disk over SSH."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

from tpuctl.cloud.objects import ObjectStore, Progress
from tpuctl.errors import Conflict, NotFound
from tpuctl.jobs.pack_format import index_size, is_pack_name
from tpuctl.model.names import BUNDLES
from tpuctl.remote.transport import Transport

__all__ = ["BucketPackStore", "PackStore", "WorkerPackStore"]

PACKS = f"{BUNDLES}/packs"
WORKER_PACKS = ".tpuctl/packs"
RENEWAL_AGE = timedelta(days=10)  # the bucket deletes bundles after thirty


class PackStore(Protocol):
    """Stores packs, and the roots of bundles, which list their packs."""

    async def packs(self) -> set[str]:
        """The names of all existing packs."""
        ...

    async def index(self, pack: str) -> bytes:
        """The bytes of a pack's index, unverified."""
        ...

    async def renew(self, pack: str) -> bool:
        """Renew a pack, so that it exists as long as a job may need it; False if it is gone."""
        ...

    async def put(self, pack: str, path: Path, progress: Progress) -> None: ...

    async def put_root(self, digest: str, root: bytes) -> str:
        """Store a bundle's root, after all its packs; returns the root's name."""
        ...


class BucketPackStore:
    """Objects below one prefix of the bucket, from which all workers download."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._updated: Mapping[str, datetime] = {}

    async def packs(self) -> set[str]:
        objects = await self._store.list(PACKS + "/")
        updated_by_name = {info.name.rpartition("/")[2]: info.updated for info in objects}
        self._updated = {
            name: updated for name, updated in updated_by_name.items() if is_pack_name(name)
        }
        return set(self._updated)

    async def index(self, pack: str) -> bytes:
        return await self._store.read_range(f"{PACKS}/{pack}", 0, index_size(pack))

    async def renew(self, pack: str) -> bool:
        if datetime.now(UTC) - self._updated[pack] < RENEWAL_AGE:
            return True
        try:
            with suppress(Conflict):  # another client is renewing it
                await self._store.touch(f"{PACKS}/{pack}")
        except NotFound:
            return False
        return True

    async def put(self, pack: str, path: Path, progress: Progress) -> None:
        # An existing pack is replaced: it is corrupt.
        is_new = pack not in self._updated
        await self._store.put_file(f"{PACKS}/{pack}", path, if_absent=is_new, progress=progress)

    async def put_root(self, digest: str, root: bytes) -> str:
        name = f"{BUNDLES}/{digest}.json"
        await self._store.put_bytes(name, root)
        return name


class WorkerPackStore:
    """A folder on a worker, which only that worker uses."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def packs(self) -> set[str]:
        result = await self._transport.run(["sh", "-c", f"ls {WORKER_PACKS} 2>/dev/null || :"])
        names = result.check(f"{self._subject}: listing packs").stdout.decode().split()
        return {name for name in names if is_pack_name(name)}

    async def index(self, pack: str) -> bytes:
        length = str(index_size(pack))
        result = await self._transport.run(["head", "-c", length, f"{WORKER_PACKS}/{pack}"])
        return result.check(f"{self._subject}: reading a pack").stdout

    async def renew(self, pack: str) -> bool:
        return True

    async def put(self, pack: str, path: Path, progress: Progress) -> None:
        await self._transport.put(path, f"{WORKER_PACKS}/{pack}", mode=0o600, progress=progress)

    async def put_root(self, digest: str, root: bytes) -> str:
        name = f"{WORKER_PACKS}/{digest}.json"
        await self._transport.put(root, name, mode=0o600)
        return name

    @property
    def _subject(self) -> str:
        return f"worker {self._transport.worker}"
