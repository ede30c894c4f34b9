"""What machines keep in the bucket for later jobs, and its limits.

Like the programs that import it, this file is sent to workers as it is: standard library only,
Python 3.8 and later. The bucket's lifecycle rule deletes such objects after `MAX_AGE_DAYS`, too.
"""

from __future__ import annotations

import time

TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from typing import IO

    from tpuctl.jobs.shipped.machine.storage import Bucket

MAX_AGE_DAYS = 30  # what is older is not used: requirements without a version get a newer one
READ_BYTES = 1 << 20
FIELDS = "name,size,generation,timeCreated,md5Hash"  # of a CachedObject


class CachedObject:
    """An object in the bucket."""

    def __init__(self, item: dict[str, str]) -> None:
        self.name = item["name"]
        self.size = int(item["size"])
        self.generation = int(item["generation"])
        self.created = item["timeCreated"]  # RFC 3339 in UTC: sorts by time
        self.md5 = item.get("md5Hash", "")  # base64

    @property
    def is_too_old(self) -> bool:
        oldest = time.gmtime(time.time() - MAX_AGE_DAYS * 86400)
        return self.created < time.strftime("%Y-%m-%dT%H:%M:%S", oldest)


def cached_objects(bucket: Bucket, prefix: str) -> list[CachedObject]:
    """The objects with a prefix, the latest first."""
    objects = map(CachedObject, bucket.objects(prefix, FIELDS))
    return sorted(objects, key=lambda entry: entry.created, reverse=True)


def download(bucket: Bucket, cached: CachedObject, target: IO[bytes]) -> None:
    """Write an object's content to a file. Raises OSError if it is incomplete."""
    path = bucket.object(cached.name)
    with bucket.open("GET", path, alt="media", generation=cached.generation) as source:
        for data in iter(lambda: source.read(READ_BYTES), b""):
            target.write(data)
        if source.length:  # remaining bytes of the Content-Length
            raise OSError(f"download of gs://{bucket.name}/{cached.name} was interrupted")


def prune(bucket: Bucket, prefix: str, max_bytes: int) -> None:
    """Delete objects that are too old, and the oldest of those that exceed `max_bytes`."""
    used = 0
    for cached in cached_objects(bucket, prefix):
        used += cached.size
        if used > max_bytes or cached.is_too_old:
            bucket.delete(cached.name, ifGenerationMatch=cached.generation)
