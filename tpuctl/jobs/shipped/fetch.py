"""Downloads and unpacks a job's bundle on a worker.

Like `supervisor.py`, which starts it, this file is sent to workers as it is and runs there as
`python3 -S -I fetch.py FOLDER`: standard library only, Python 3.8 and later. It unpacks the bundle
that FOLDER/spec.json names to FOLDER/code. Packs are cached in ~/.tpuctl/packs, and only missing
ones are downloaded. Those that the bundle does not use may take CACHE_BYTES: the least recently
used are removed first.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import http.client
import json
import os
import sys
import time
import urllib.error
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

# The other shipped files are in this folder, as is the job's code: search it after the standard
# library.
sys.path.append(os.path.dirname(os.path.abspath(__file__)))
if TYPE_CHECKING:
    from tpuctl.jobs.shipped.storage import Bucket, load, private
    from tpuctl.jobs.shipped.unpack import CorruptPack, Failure, is_pack_name, unpack
else:
    from storage import Bucket, load, private
    from unpack import CorruptPack, Failure, is_pack_name, unpack

__all__ = ["main"]

CACHE_BYTES = 2_000_000_000  # maximum of packs that the current bundle does not use
MAX_PARALLEL_REQUESTS = 4
RETRY_DELAYS = (1, 2, 4, 8)  # seconds between retries
NOT_FOUND = "{} no longer exists: run the job again to upload it again"


class Cache:
    """The packs on this machine, and the roots of bundles, which list packs.

    Locked by one process at a time, but new files may arrive over SSH.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        os.makedirs(folder, exist_ok=True)
        self.lock = os.open(self.path("lock"), os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self.lock, fcntl.LOCK_EX)

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def is_missing(self, name: str) -> bool:
        return not os.path.exists(self.path(name))

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
    """One bundle: named by its digest, held by packs that are here or in the bucket."""

    def __init__(self, cache: Cache, bucket: Bucket | None, digest: str, name: str) -> None:
        self.cache = cache
        self.bucket = bucket
        self.digest = digest
        self.name = name  # of its root in the bucket
        self.root_name = digest + ".json"
        self.used: set[str] = set()  # the bundle's files in the cache
        self.corrupt: dict[str, int] = {}  # generation of packs that were corrupt once

    def fetch(self, target: str) -> None:
        for delay in (*RETRY_DELAYS, None):
            try:
                unpack(self.cache.folder, self.root(), self.digest, target)
                self.cache.evict(self.used)
                return
            except CorruptPack as error:
                message = self.discard_corrupt(str(error))
            except (OSError, http.client.HTTPException) as error:
                message = f"cannot fetch the bundle: {error}"
                if getattr(error, "errno", None) == errno.ENOSPC:
                    self.cache.evict(self.used, 0)
            if delay is not None:
                time.sleep(delay)
        raise Failure(message)

    def root(self) -> dict[str, Any]:
        """The bundle's root, once all of its packs are in the cache."""
        root = self.validate_root(load(self.cache.folder, self.root_name))
        if root is not None and not any(map(self.cache.is_missing, root["packs"])):
            return root
        if self.bucket is None:
            raise Failure("the bundle was not uploaded to this machine")
        root = self.validate_root(self.bucket.read(self.name))
        if root is None:
            raise Failure(NOT_FOUND.format(self.uri(self.name)))
        with ThreadPoolExecutor(MAX_PARALLEL_REQUESTS) as pool:
            list(pool.map(self.download, filter(self.cache.is_missing, root["packs"])))
        self.save(self.root_name, json.dumps(root).encode())
        return root

    def validate_root(self, root: dict[str, Any] | None) -> dict[str, Any] | None:
        """The root, if it lists only valid names of packs."""
        if root is not None:
            for name in root["packs"]:
                if not is_pack_name(name):
                    raise Failure(f"{name!r} is not a valid pack name")
            self.used = {self.root_name, *root["packs"]}
        return root

    def uri(self, name: str) -> str:
        assert self.bucket is not None
        return f"gs://{self.bucket.name}/{name}"

    def object_name(self, pack: str) -> str:
        return os.path.dirname(self.name) + "/packs/" + pack

    def download(self, pack: str) -> None:
        assert self.bucket is not None
        name = self.object_name(pack)
        query: dict[str, Any] = {"alt": "media"}
        if pack in self.corrupt:
            query["generation"] = self.corrupt[pack]
        partial = self.cache.path(pack + ".part")
        try:
            with self.bucket.open("GET", self.bucket.object(name), **query) as source:
                with open(partial, "wb", opener=private) as target:
                    for piece in iter(lambda: source.read(1 << 20), b""):
                        target.write(piece)
                if source.length:  # remaining bytes of the Content-Length
                    raise OSError(f"download of {self.uri(name)} was interrupted")
        except urllib.error.HTTPError as error:
            if error.code == 404:
                raise Failure(NOT_FOUND.format(self.uri(name))) from error
            raise OSError(f"{self.uri(name)}: {error}") from error
        os.replace(partial, self.cache.path(pack))

    def save(self, name: str, content: bytes) -> None:
        with open(self.cache.path(name + ".part"), "wb", opener=private) as target:
            target.write(content)
        os.replace(self.cache.path(name + ".part"), self.cache.path(name))

    def discard_corrupt(self, pack: str) -> str:
        """Remove a corrupt pack, so that it is downloaded again; returns the error.

        The second time it is corrupt in the bucket: it is deleted there, so that the next run
        uploads it again.
        """
        self.cache.remove(pack)
        if self.bucket is None:
            raise Failure("the bundle on this machine is corrupt: run the job again")
        name = self.object_name(pack)
        if pack not in self.corrupt:
            self.corrupt[pack] = self.bucket.stat(name)[1]
            return f"{self.uri(name)} is corrupt after download"
        try:
            self.bucket.delete(name, ifGenerationMatch=self.corrupt[pack])
        except OSError as error:
            raise Failure(f"{self.uri(name)} is corrupt, delete it: {error}") from error
        raise Failure(
            f"{self.uri(name)} was corrupt and has been deleted: "
            "run the job again to upload it again"
        )


def main(arguments: list[str]) -> int:
    (folder,) = arguments
    spec = load(folder, "spec.json")
    assert spec is not None
    code = os.path.join(folder, "code")
    digest, name = spec["bundle"]["sha256"], spec["bundle"].get("name")
    try:
        if not os.path.isdir(code):
            cache = Cache(os.path.expanduser("~/.tpuctl/packs"))
            bucket = Bucket(spec["bucket"]) if name else None
            Bundle(cache, bucket, digest, name or "").fetch(code)
    except Failure as failure:
        print(failure)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
