"""Downloads and unpacks a job's bundle on a worker.

Like `supervisor.py`, which forks it, this file is sent to workers as it is and also runs as
`python3 -S -I fetch.py FOLDER`: standard library only, Python 3.8 and later. It unpacks the bundle
that FOLDER/spec.json names to FOLDER/code. Archives and records are cached in ~/.tpuctl/bundles,
and only missing ones are downloaded. Those that the bundle does not use may take CACHE_BYTES: the
least recently used are removed first.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import os
import sys
import time

# The other shipped files are in this folder, as is the job's code: search it after the standard
# library.
sys.path.append(os.path.dirname(os.path.abspath(__file__)))
TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from typing import Any

    from tpuctl.jobs.shipped.downloads.unpack import (
        CorruptFile,
        Failure,
        Record,
        for_each,
        read_record,
        unpack,
    )
    from tpuctl.jobs.shipped.machine.folder import Folder, private, wait_for_lock
    from tpuctl.jobs.shipped.machine.storage import Bucket, HttpError
else:
    from folder import Folder, private, wait_for_lock
    from storage import Bucket, HttpError
    from unpack import CorruptFile, Failure, Record, for_each, read_record, unpack

CACHE_BYTES = 2_000_000_000  # maximum of files that the current bundle does not use
MAX_PARALLEL_REQUESTS = 4
RETRY_DELAYS = (1, 2, 4, 8)  # seconds between retries


class Cache:
    """The archives and records on this machine.

    Locked by one process at a time, but new files may arrive over SSH.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        os.makedirs(folder, exist_ok=True)
        self.lock = wait_for_lock(self.path("lock"))

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def missing(self, names: list[str]) -> list[str]:
        return [name for name in names if not os.path.exists(self.path(name))]

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.remove(self.path(name))

    def evict(self, used: set[str], max_bytes: int = CACHE_BYTES) -> None:
        """Mark the files in `used`; of the others, keep `max_bytes` of the most recently used."""
        others = []
        for entry in os.scandir(self.folder):
            if entry.name in used:
                os.utime(entry.path)
            elif entry.name != "lock":
                others.append((entry.stat().st_mtime, entry.stat().st_size, entry.name))
        for _, size, name in sorted(others, reverse=True):
            max_bytes -= size
            if max_bytes < 0:
                self.remove(name)


class Bundle:
    """One bundle: named by its digest, in archives that are here or in the bucket."""

    def __init__(self, cache: Cache, bucket: Bucket | None, digest: str, name: str) -> None:
        self.cache = cache
        self.bucket = bucket
        self.digest = digest
        self.folder = os.path.dirname(name)  # in the bucket; `name` is its record there
        self.record_name = digest + ".json.gz"
        self.used = {self.record_name}  # the bundle's files in the cache
        self.corrupt: dict[str, int] = {}  # generation of files that were corrupt once

    def fetch(self, target: str) -> None:
        for delay in (*RETRY_DELAYS, None):
            try:
                unpack(self.cache.folder, self.download_missing(), target)
                self.cache.evict(self.used)
                return
            except CorruptFile as error:
                message = self.discard_corrupt(str(error))
            except (OSError, http.client.HTTPException) as error:
                message = f"cannot fetch the bundle: {error}"
                if getattr(error, "errno", None) == errno.ENOSPC:
                    self.cache.evict(self.used, 0)
            if delay is not None:
                time.sleep(delay)
        raise Failure(message)

    def download_missing(self) -> Record:
        """The bundle's record, once all of its archives are in the cache."""
        missing = self.cache.missing
        if missing([self.record_name]) or missing(self.read_record().archives):
            # The record in the bucket may list other archives, if these were lost there.
            self.download(self.record_name)
            archives = missing(self.read_record().archives)
            for_each(archives, self.download, MAX_PARALLEL_REQUESTS)
        return self.read_record()

    def read_record(self) -> Record:
        record = read_record(self.cache.path(self.record_name), self.digest)
        self.used.update(record.archives)
        return record

    def download(self, name: str) -> None:
        if self.bucket is None:
            raise Failure("the bundle was not uploaded to this machine")
        query: dict[str, Any] = {"alt": "media"}
        if name in self.corrupt:
            query["generation"] = self.corrupt[name]
        partial = self.cache.path(name + ".part")
        path = self.bucket.object(f"{self.folder}/{name}")
        try:
            with self.bucket.open("GET", path, **query) as source:
                with open(partial, "wb", opener=private) as target:
                    for data in iter(lambda: source.read(1 << 20), b""):
                        target.write(data)
                if source.length:  # remaining bytes of the Content-Length
                    raise OSError(f"download of {self.uri(name)} was interrupted")
        except HttpError as error:
            if error.code == 404:
                message = "no longer exists: run the job again to upload it again"
                raise Failure(f"{self.uri(name)} {message}") from error
            raise OSError(f"{self.uri(name)}: {error}") from error
        os.replace(partial, self.cache.path(name))

    def uri(self, name: str) -> str:
        assert self.bucket is not None
        return f"gs://{self.bucket.name}/{self.folder}/{name}"

    def discard_corrupt(self, name: str) -> str:
        """Remove a corrupt file, so that it is downloaded again; returns the error.

        The second time it is corrupt in the bucket: it is deleted there, so that the next run
        uploads it again.
        """
        self.cache.remove(name)
        if self.bucket is None:
            raise Failure("the bundle on this machine is corrupt: run the job again")
        if name not in self.corrupt:
            self.corrupt[name] = self.bucket.stat(f"{self.folder}/{name}")[1]
            return f"{self.uri(name)} is corrupt after download"
        try:
            self.bucket.delete(f"{self.folder}/{name}", ifGenerationMatch=self.corrupt[name])
        except OSError as error:
            raise Failure(f"{self.uri(name)} is corrupt, delete it: {error}") from error
        raise Failure(
            f"{self.uri(name)} was corrupt and has been deleted: "
            "run the job again to upload it again"
        )


def main(arguments: list[str]) -> int:
    folder = Folder(*arguments)
    spec = folder.read("spec.json")
    assert spec is not None
    code = folder.file("code")
    digest, name = spec["bundle"]["sha256"], spec["bundle"].get("name")
    try:
        if not os.path.isdir(code):
            cache = Cache(os.path.expanduser("~/.tpuctl/bundles"))
            bucket = Bucket(spec["bucket"]) if name else None
            Bundle(cache, bucket, digest, name or "").fetch(code)
    except Failure as failure:
        print(failure)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
