"""Noncurrent and soft-deleted versions of objects.

cloud.google.com/storage/docs/object-versioning and /storage/docs/soft-delete. Soft-deleted data is
limited in size here: the oldest versions are deleted early.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from tpuctl.emulator.state.projects import now_text
from tpuctl.emulator.state.store import Store
from tpuctl.emulator.storage.buckets.bucket_settings import Bucket, soft_delete_seconds
from tpuctl.emulator.storage.objects.object_row import StoredObject
from tpuctl.emulator.storage.requests.primitives import ObjectFiles

MAX_SOFT_DELETED_BYTES = 1 << 30
_COLUMNS = "bucket, name, generation, metageneration, size, file, body"


class Versions:
    """All versions of objects except the live ones. Rows with `until` are soft-deleted."""

    def __init__(self, store: Store, files: ObjectFiles) -> None:
        self._store = store
        self._files = files
        self._soft_deleted_bytes = self._count()
        self._removed_files: list[str] = []  # files whose rows this transaction deleted

    def find(
        self, bucket: str, name: str, generation: int, *, is_soft_deleted: bool = False
    ) -> StoredObject | None:
        row = self._store.row(
            f"SELECT {_COLUMNS} FROM versions WHERE bucket=? AND name=? AND generation=? "
            f"AND {'until>?' if is_soft_deleted else 'until IS NULL AND ?'}",
            bucket,
            name,
            generation,
            time.time(),
        )
        return StoredObject.of(row) if row else None

    def save(self, stored: StoredObject, until: float | None = None) -> None:
        self._store.run(
            f"INSERT OR REPLACE INTO versions ({_COLUMNS}, until) VALUES (?,?,?,?,?,?,?,?)",
            *stored.row(),
            until,
        )

    def retire(self, stored: StoredObject, bucket: Bucket, *, for_good: bool) -> None:
        """Keep a formerly live version, or a noncurrent one that is deleted `for_good`.

        Part of a transaction; call `clean` after it.
        """
        self._store.run(
            "DELETE FROM versions WHERE bucket=? AND name=? AND generation=?",
            stored.bucket,
            stored.name,
            stored.generation,
        )
        if not for_good and (bucket.get("versioning") or {}).get("enabled"):
            self.save(stored.with_body({**stored.body, "timeDeleted": now_text()}))
            return
        seconds = soft_delete_seconds(bucket)
        if not seconds or stored.size > MAX_SOFT_DELETED_BYTES:
            self._removed_files.append(stored.file)
            return
        now = time.time()
        times = {"softDeleteTime": _format_time(now), "hardDeleteTime": _format_time(now + seconds)}
        self.save(stored.with_body({**stored.body, **times}), now + seconds)
        self._soft_deleted_bytes += stored.size
        while self._soft_deleted_bytes > MAX_SOFT_DELETED_BYTES and self._drop_oldest():
            pass

    def clean(self) -> None:
        """Delete the files of versions that the committed transaction removed."""
        removed, self._removed_files = self._removed_files, []
        for file in removed:
            self._files.remove(file)

    def rollback(self) -> None:
        """Reset after a failed transaction."""
        self._removed_files = []
        self._soft_deleted_bytes = self._count()

    def forget_bucket(self, bucket: str) -> None:
        """Delete the soft-deleted versions of a deleted bucket."""
        rows = self._store.rows("SELECT file FROM versions WHERE bucket=?", bucket)
        self._store.run("DELETE FROM versions WHERE bucket=?", bucket)
        self._soft_deleted_bytes = self._count()
        for (file,) in rows:
            self._files.remove(file)

    def sweep(self) -> None:
        """Delete expired soft-deleted versions."""
        self._store.run("DELETE FROM versions WHERE until<=?", time.time())
        self._soft_deleted_bytes = self._count()

    def files(self) -> set[str]:
        return {file for (file,) in self._store.rows("SELECT file FROM versions")}

    def _count(self) -> int:
        row = self._store.row("SELECT coalesce(sum(size), 0) FROM versions WHERE until>0")
        return int(row[0]) if row else 0

    def _drop_oldest(self) -> bool:
        row: tuple[Any, ...] | None = self._store.row(
            "SELECT bucket, name, generation, size, file FROM versions WHERE until>0 "
            "ORDER BY until LIMIT 1"
        )
        if row is None:
            return False
        self._store.run("DELETE FROM versions WHERE bucket=? AND name=? AND generation=?", *row[:3])
        self._soft_deleted_bytes -= int(row[3])
        self._removed_files.append(row[4])
        return True


def _format_time(timestamp: float) -> str:
    text = datetime.fromtimestamp(timestamp, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
