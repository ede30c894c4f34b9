"""Objects of one bucket, awaited: a small face of the official storage client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any, TypeVar

from tpuctl.cloud.errors import convert, is_foreign
from tpuctl.cloud.threads import in_thread
from tpuctl.errors import Conflict, NotFound

__all__ = ["ObjectInfo", "ObjectStore", "Progress"]

T = TypeVar("T")
Progress = Callable[[int, int], None]  # bytes done, bytes in all
CHUNK = 8 << 20  # of a resumable upload: what is lost when the connection drops
SECONDS = 60.0
PATIENCE = 30.0  # seconds in which a request is repeated; the client's own limit is 120


@dataclass(frozen=True)
class ObjectInfo:
    """An object as it was when asked. `generation` changes with every write."""

    name: str
    size: int
    generation: int
    updated: datetime


class ObjectStore:
    """The bucket's objects. Every call is repeated while that is safe and may help.

    Raises the project's own errors: NotFound, Conflict when a generation is not the expected one,
    Denied, Transient.
    """

    def __init__(self, client: Any, bucket: str, *, patience: float = PATIENCE) -> None:
        from google.cloud.storage.retry import DEFAULT_RETRY

        self.name = bucket
        self._options = {"timeout": SECONDS, "retry": DEFAULT_RETRY.with_timeout(patience)}
        self._bucket = client.bucket(bucket)

    def uri(self, name: str) -> str:
        return f"gs://{self.name}/{name}"

    async def stat(self, name: str) -> ObjectInfo | None:
        """What the object is; None when it is not there."""
        blob = await self._call(name, lambda: self._bucket.get_blob(name, **self._options))
        return None if blob is None else _info(blob)

    async def exists(self, name: str) -> bool:
        return await self.stat(name) is not None

    async def put_file(
        self,
        name: str,
        path: Path,
        *,
        if_absent: bool = True,
        progress: Progress | None = None,
    ) -> bool:
        """Upload a file; False when `if_absent` and an object of that name is there already."""
        if if_absent and await self.exists(name):
            return False
        blob = self._bucket.blob(name, chunk_size=CHUNK)

        def upload() -> None:
            size = path.stat().st_size
            with path.open("rb") as file:
                blob.upload_from_file(
                    _Counting(file, size, progress),
                    size=size,
                    content_type="application/octet-stream",
                    if_generation_match=0 if if_absent else None,
                    **self._options,
                )

        try:
            await self._call(name, upload)
        except Conflict:
            return False  # another upload of the same name ended first
        return True

    async def put_bytes(self, name: str, data: bytes, *, if_generation: int | None = None) -> int:
        """Write an object and return its new generation.

        `if_generation` is what must be there now, 0 for nothing. A repeated write may meet its
        own success; what is there is then compared, so that Conflict means another's write.
        """
        kind = "application/json" if name.endswith(".json") else "application/octet-stream"
        blob = self._bucket.blob(name)

        def upload() -> int:
            blob.upload_from_string(
                data, content_type=kind, if_generation_match=if_generation, **self._options
            )
            return int(blob.generation)

        try:
            return await self._call(name, upload)
        except Conflict:
            there = await self.stat(name)
            if there is None or there.size != len(data) or await self.get_bytes(name) != data:
                raise
            return there.generation

    async def get_bytes(self, name: str) -> bytes:
        """The whole object. Raises NotFound."""
        blob = self._bucket.blob(name)
        return await self._call(name, lambda: _bytes(blob.download_as_bytes(**self._options)))

    async def get_version(self, name: str) -> tuple[bytes, int]:
        """The whole object and its generation. Raises NotFound."""
        blob = self._bucket.blob(name)
        data = await self._call(name, lambda: _bytes(blob.download_as_bytes(**self._options)))
        return data, int(blob.generation)

    async def read_range(self, name: str, start: int, length: int = CHUNK) -> bytes:
        """At most `length` bytes from byte `start` on; empty at or after the end.

        Raises NotFound when there is no such object.
        """
        there = await self._found(name)
        if start >= there.size:
            return b""
        end = min(start + length, there.size) - 1
        blob = self._bucket.blob(name)

        def download() -> bytes:
            return _bytes(
                blob.download_as_bytes(
                    start=start, end=end, raw_download=True, checksum=None, **self._options
                )
            )

        return await self._call(name, download)

    async def _found(self, name: str) -> ObjectInfo:
        """What is known of an object. Raises NotFound when there is none."""
        there = await self.stat(name)
        if there is None:
            raise NotFound(
                "Not found",
                self.uri(name),
                hint=(
                    "It was deleted, or never written. What there is of the stack and its jobs:\n"
                    "    tpuctl status\n    tpuctl jobs"
                ),
            )
        return there

    async def folders(self, prefix: str) -> list[str]:
        """The names right below a prefix that have more below them, without looking there."""

        def listed() -> list[str]:
            found = self._bucket.list_blobs(prefix=prefix, delimiter="/", **self._options)
            for _ in found.pages:
                pass  # each adds its own to the prefixes
            return sorted(one.removeprefix(prefix).rstrip("/") for one in found.prefixes)

        return await self._call(prefix, listed)

    async def list(self, prefix: str) -> list[ObjectInfo]:
        """Objects whose names start with `prefix`, by name."""

        def listed() -> list[ObjectInfo]:
            found = self._bucket.list_blobs(prefix=prefix, **self._options)
            return [_info(blob) for blob in found]

        return await self._call(prefix, listed)

    async def renew(self, name: str) -> None:
        """Make an object as new as if it were written now; nothing is sent.

        Raises NotFound, and Conflict when it is written meanwhile.
        """
        there = await self._found(name)
        blob = self._bucket.blob(name)

        def rewrite() -> None:
            token: str | None = ""
            while token is not None:
                token, _, _ = blob.rewrite(
                    blob,
                    token=token or None,
                    if_generation_match=there.generation,
                    if_source_generation_match=there.generation,
                    **self._options,
                )

        await self._call(name, rewrite)

    async def delete(self, name: str) -> None:
        """Delete an object; one that is not there is fine."""
        try:
            await self._call(name, lambda: self._bucket.blob(name).delete(**self._options))
        except NotFound:
            return

    async def _call(self, name: str, function: Callable[[], T]) -> T:
        try:
            return await in_thread(function)
        except Exception as error:
            if not is_foreign(error):
                raise
            raise convert(error, self.uri(name)) from error


class _Counting:
    """A file that tells how far it was read."""

    def __init__(self, file: IO[bytes], size: int, progress: Progress | None) -> None:
        self._file = file
        self._size = size
        self._progress = progress
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        if self._progress is not None:
            self._progress(self._file.tell(), self._size)
        return data


def _info(blob: Any) -> ObjectInfo:
    return ObjectInfo(blob.name, int(blob.size), int(blob.generation), blob.updated)


def _bytes(data: Any) -> bytes:
    assert isinstance(data, bytes)
    return data
