"""Tools in the bucket: one worker downloads what is missing, and the others unpack it.

Used by `tools.py`, which describes the objects, this file is sent to workers as it is: standard
library only, Python 3.8 and later.
"""

from __future__ import annotations

import os
import sys

# The other shipped files are in this folder, as is the job's code: search it after the standard
# library.
sys.path.append(os.path.dirname(os.path.abspath(__file__)))
TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from tpuctl.jobs.shipped.downloads.bucket_cache import CachedObject, download
    from tpuctl.jobs.shipped.environment.bucket_lock import UNAVAILABLE, BucketLock
    from tpuctl.jobs.shipped.environment.environment_store import ARCHIVE, sha256
    from tpuctl.jobs.shipped.environment.run_once import Failure
    from tpuctl.jobs.shipped.environment.tool_archive import Tool
    from tpuctl.jobs.shipped.machine.folder import Folder, private
    from tpuctl.jobs.shipped.machine.storage import Bucket, HttpError
else:
    from bucket_cache import CachedObject, download
    from bucket_lock import UNAVAILABLE, BucketLock
    from environment_store import ARCHIVE, sha256
    from folder import Folder, private
    from run_once import Failure
    from storage import Bucket, HttpError


class ToolStore:
    """One tool in the bucket, for one worker."""

    def __init__(self, folder: Folder, spec: dict[str, Any], tool: Tool) -> None:
        self.folder = folder
        self.tool = tool
        self.bucket = Bucket(spec["bucket"])
        self.prefix = f"{spec['tools']}/{tool.key}/"
        self.lock = BucketLock(folder, spec, self.bucket, self.prefix)

    def provide(self, path: str, download: Callable[[], str], extract: Callable[[], None]) -> str:
        """Unpack the archive in the bucket, which is written to `path`; or else the one that
        `download` writes there, and store it. Returns what was done."""
        try:
            if self.unpack_or_lock(path, extract):
                return f"unpacked {self.tool} from the bucket"
        except UNAVAILABLE as error:
            self.folder.log(f"gs://{self.bucket.name}/{self.prefix} is not available: {error}")
        if not self.lock.is_held:
            self.unpack_download(path, download, extract)
            return f"downloaded {self.tool}"
        with self.lock.renewed():
            digest = self.unpack_download(path, download, extract)
            is_stored = self.store(path, digest)
        return f"downloaded {self.tool}" + (" and stored it in the bucket" if is_stored else "")

    def unpack_or_lock(self, path: str, extract: Callable[[], None]) -> bool:
        """Wait until the tool is unpacked (True), or this worker should download it."""

        def use(objects: list[CachedObject]) -> bool | None:
            archives = self.usable(objects)
            if not archives:
                return None
            if self.lock.is_held:  # another worker stored it just before this one took the lock
                self.lock.release()
            return self.unpack(archives[0], path, extract)

        return self.lock.use_or_lock(use, f"downloads {self.tool}")

    def usable(self, objects: list[CachedObject]) -> list[CachedObject]:
        """The archives that will do, the one with the known checksum first."""
        archives = [entry for entry in objects if entry.name.endswith(ARCHIVE)]
        exact = [entry for entry in archives if self.digest_of(entry) == self.tool.sha256]
        return exact or ([] if self.tool.is_exact else archives)

    def digest_of(self, cached: CachedObject) -> str:
        return cached.name[len(self.prefix) : -len(ARCHIVE)]

    def unpack(self, cached: CachedObject, path: str, extract: Callable[[], None]) -> bool:
        """Unpack an archive; False if it was corrupt, and deleted in the bucket."""
        try:
            with open(path, "w+b", opener=private) as archive:
                download(self.bucket, cached, archive)
                is_intact = sha256(archive) == self.digest_of(cached)
        except HttpError as error:
            if error.code != 404:  # deleted in the meantime
                raise
            return False
        problem = "its checksum is another"
        if is_intact:
            try:
                extract()
                return True
            except ValueError as error:
                problem = str(error)
        self.folder.log(f"deleting a corrupt archive: {cached.name}: {problem}")
        self.bucket.delete(cached.name, ifGenerationMatch=cached.generation)
        return False

    def unpack_download(
        self, path: str, download: Callable[[], str], extract: Callable[[], None]
    ) -> str:
        """Download and unpack; returns the archive's checksum. Raises Failure."""
        download()
        with open(path, "rb") as archive:
            digest = sha256(archive)
        if self.tool.is_exact and digest != self.tool.sha256:
            raise Failure(
                f"{self.tool} as downloaded is not the job's: its sha256 is {digest}, and not "
                f"{self.tool.sha256}; submit the job again"
            )
        try:
            extract()
        except ValueError as error:
            raise Failure(str(error)) from error
        return digest

    def store(self, path: str, digest: str) -> bool:
        try:
            with open(path, "rb") as archive:
                self.bucket.put(f"{self.prefix}{digest}{ARCHIVE}", archive)
        except UNAVAILABLE as error:
            self.folder.log(f"{self.tool} could not be stored in the bucket: {error}")
            return False
        return True
