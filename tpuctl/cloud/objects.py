"""Async access to the objects of a bucket, on top of the official storage client."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from io import BytesIO
from pathlib import Path
from typing import IO, Any, TypeVar

from tpuctl.cloud.errors import convert, is_foreign
from tpuctl.cloud.server_clock import ServerClock
from tpuctl.cloud.threads import in_thread, recorded
from tpuctl.errors import Conflict, NotFound
from tpuctl.model.troubleshooting.command_record import RecordCall
from tpuctl.polling import Backoff, Clock

T = TypeVar("T")
Progress = Callable[[int, int], None]  # bytes done, total bytes
CHUNK = 8 << 20  # of a resumable upload: the most that is lost if the connection drops
REQUEST_SECONDS = 60.0
MAX_OBJECT_BYTES = 64 << 20  # of an object that is read into memory
MAX_UPDATES = 12
UPDATE_RETRY = Backoff(initial=0.05, maximum=2.0, multiplier=1.7)
RETRY_SECONDS = 30.0  # how long a request is retried; the client's default is 120


@dataclass(frozen=True)
class ObjectInfo:
    """An object's metadata at the time of the call. `generation` changes with every write."""

    name: str
    size: int
    generation: int
    updated: datetime
    created: datetime


class ObjectStore:
    """The objects of a bucket. Calls are retried when that is safe.

    Raises NotFound, Conflict (unexpected generation), Denied or Transient. `record` receives each
    call, without the content of objects.
    """

    def __init__(
        self,
        client: Any,
        bucket: str,
        *,
        retry_seconds: float | None = None,  # by default RETRY_SECONDS
        record: RecordCall | None = None,
        clock: ServerClock | None = None,
    ) -> None:
        from google.cloud.storage.retry import DEFAULT_RETRY

        self.name = bucket
        self.clock = clock or ServerClock()
        self._record = record
        self._options = {
            "timeout": REQUEST_SECONDS,
            "retry": DEFAULT_RETRY.with_timeout(
                RETRY_SECONDS if retry_seconds is None else retry_seconds
            ),
        }
        self._bucket = client.bucket(bucket)
        self._facts = {"project": client.project} if client.project else {}  # for hints

    def uri(self, name: str) -> str:
        return f"gs://{self.name}/{name}"

    async def stat(self, name: str) -> ObjectInfo | None:
        """The object's metadata; None if it does not exist."""
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
        """Upload a file; with `if_absent`, returns False if the object already exists."""
        if if_absent and await self.exists(name):
            return False
        blob = self._bucket.blob(name, chunk_size=CHUNK)

        def upload() -> None:
            size = path.stat().st_size
            with path.open("rb") as file:
                blob.upload_from_file(
                    _ProgressReader(file, size, progress),
                    size=size,
                    content_type="application/octet-stream",
                    if_generation_match=0 if if_absent else None,
                    **self._options,
                )

        try:
            await self._call(name, upload)
        except Conflict:
            return False  # a concurrent upload finished first
        return True

    async def put_bytes(self, name: str, data: bytes, *, if_generation: int | None = None) -> int:
        """Write an object and return its new generation.

        `if_generation` is the required current generation; 0 means that it must not exist. A retry
        may find that the first try succeeded: on a mismatch the content is compared, so that
        Conflict always means a write by another caller.
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
            existing = await self.stat(name)
            if existing is None or existing.size != len(data) or await self.get_bytes(name) != data:
                raise
            return existing.generation

    async def update(
        self, name: str, change: Callable[[bytes | None], bytes | None], clock: Clock
    ) -> None:
        """Replace an object by what `change` makes of it, unless that is None.

        `change` receives None if there is no object, and is called again after a concurrent write.
        Raises NotFound without a bucket, and Conflict if concurrent writes do not end.
        """
        delays = UPDATE_RETRY.delays()
        for _ in range(MAX_UPDATES):
            text, generation = None, 0
            with suppress(NotFound):
                text, generation = await self.get_version(name)
            changed = change(text)
            if changed is None:
                return
            try:
                await self.put_bytes(name, changed, if_generation=generation)
            except Conflict:
                await clock.sleep(next(delays))
            else:
                return
        raise Conflict(
            "Too many concurrent record changes",
            self.uri(name),
            hint="Another program is working on the same stack. Wait until it is done, then "
            "repeat the command.",
        )

    async def get_bytes(self, name: str, *, max_bytes: int = MAX_OBJECT_BYTES) -> bytes:
        """The whole object. Raises NotFound, and Conflict if it is larger than `max_bytes`."""
        return await self._download(self._bucket.blob(name), max_bytes)

    async def _download(self, blob: Any, max_bytes: int = MAX_OBJECT_BYTES) -> bytes:
        target = _Buffer(max_bytes)
        try:
            await self._call(blob.name, lambda: blob.download_to_file(target, **self._options))
        except _TooLargeError as error:
            raise Conflict(
                "Object is too large",
                f"{self.uri(blob.name)} has more than {max_bytes:,} bytes",
                hint="tpuctl has not written it. If you do not need it, delete it.",
            ) from error
        return target.getvalue()

    async def get_version(self, name: str) -> tuple[bytes, int]:
        """The whole object and its generation. Raises NotFound."""
        blob = self._bucket.blob(name)
        data = await self._download(blob)
        return data, int(blob.generation)

    async def read_range(self, name: str, start: int, length: int = CHUNK) -> bytes:
        """Up to `length` bytes starting at `start`; empty at or beyond the end. Raises NotFound."""
        info = await self._require(name)
        if start >= info.size:
            return b""
        end = min(start + length, info.size) - 1
        blob = self._bucket.blob(name)

        def download() -> bytes:
            return _bytes(
                blob.download_as_bytes(
                    start=start, end=end, raw_download=True, checksum=None, **self._options
                )
            )

        return await self._call(name, download)

    async def _require(self, name: str) -> ObjectInfo:
        """The object's metadata. Raises NotFound."""
        info = await self.stat(name)
        if info is None:
            raise NotFound(
                "Not found",
                self.uri(name),
                hint=(
                    "It was deleted or never written. To see the stack and its jobs:\n"
                    "    tpuctl status\n    tpuctl jobs"
                ),
            )
        return info

    async def list(self, prefix: str, glob: str | None = None) -> list[ObjectInfo]:
        """Objects whose names start with `prefix`, and match `glob`, by name."""

        def listed() -> list[ObjectInfo]:
            blobs = self._bucket.list_blobs(prefix=prefix, match_glob=glob, **self._options)
            return [_info(blob) for blob in blobs]

        return await self._call(prefix, listed)

    async def touch(self, name: str) -> None:
        """Reset an object's age by rewriting it in place, without a transfer.

        Raises NotFound, and Conflict if it is written at the same time.
        """
        info = await self._require(name)
        blob = self._bucket.blob(name)

        def rewrite() -> None:
            token: str | None = ""
            while token is not None:
                token, _, _ = blob.rewrite(
                    blob,
                    token=token or None,
                    if_generation_match=info.generation,
                    if_source_generation_match=info.generation,
                    **self._options,
                )

        await self._call(name, rewrite)

    async def delete(self, name: str) -> None:
        """Delete an object if it exists."""
        try:
            await self._call(name, lambda: self._bucket.blob(name).delete(**self._options))
        except NotFound:
            return

    async def _call(self, name: str, function: Callable[[], T]) -> T:
        try:
            return await in_thread(recorded(function, self.uri(name), self._record))
        except Exception as error:
            if not is_foreign(error):
                raise
            raise convert(error, self.uri(name), self._facts) from error


class _ProgressReader:
    """A file that reports how much of it was read."""

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


class _TooLargeError(Exception):
    """An object has more bytes than expected."""


class _Buffer(BytesIO):
    """Memory for an object, up to a limit."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self._max_bytes = max_bytes

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > self._max_bytes:
            raise _TooLargeError
        return super().write(data)


def _info(blob: Any) -> ObjectInfo:
    return ObjectInfo(
        blob.name, int(blob.size), int(blob.generation), blob.updated, blob.time_created
    )


def _bytes(data: Any) -> bytes:
    assert isinstance(data, bytes)
    return data
