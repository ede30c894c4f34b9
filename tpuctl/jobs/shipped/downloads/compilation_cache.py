"""JAX's compilation cache: a folder of the machine, with a copy in the bucket for later attempts.

Like `preparation.py` and `uploader.py`, which use it, this file is sent to workers as it is:
standard library only, Python 3.8 and later. `preparation.py` also runs it as `compilation_cache.py
FOLDER`, which downloads what the machine lacks. JAX writes each compiled program once, into a file
that is named by a hash of the program, its options and devices, and the versions of the compiler.

JAX itself writes to gs:// only with packages that most jobs do not have: `etils` and `gcsfs`.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import sys
import time

# The other shipped files are in this folder, as is the job's code: search it after the standard
# library.
sys.path.append(os.path.dirname(os.path.abspath(__file__)))
TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from typing import Any

    from tpuctl.jobs.shipped.downloads.bucket_cache import (
        CachedObject,
        cached_objects,
        download,
        prune,
    )
    from tpuctl.jobs.shipped.downloads.unpack import for_each
    from tpuctl.jobs.shipped.machine.folder import Folder, private
    from tpuctl.jobs.shipped.machine.storage import Bucket, HttpError
else:
    from bucket_cache import CachedObject, cached_objects, download, prune
    from folder import Folder, private
    from storage import Bucket, HttpError
    from unpack import for_each

MAX_BYTES = 5_000_000_000  # of all programs in the bucket, and of those that a machine downloads
MAX_PARALLEL_REQUESTS = 8
SETTLE_SECONDS = 2.0  # a file that did not change for so long is complete


class CompilationCache:
    """The compiled programs for one generation and runtime, on one machine."""

    def __init__(self, spec: dict[str, Any], bucket: Bucket) -> None:
        self.bucket = bucket
        self.prefix: str = spec["cache"]["compiled"] + "/"
        self.folder: str = os.path.expanduser(spec["cache"]["folder"])
        self.uploaded: set[str] | None = None  # names of files in the bucket, once known
        self.has_changed = False  # the copy in the bucket

    def download_missing(self) -> int:
        """Make the folder a copy of the one in the bucket; returns the number of downloads.

        A file that is not in the bucket may be incomplete: JAX would never replace it.
        """
        os.makedirs(self.folder, exist_ok=True)
        local = {entry.name: entry.stat().st_size for entry in os.scandir(self.folder)}
        missing, total = {}, 0
        for cached in cached_objects(self.bucket, self.prefix):
            total += cached.size
            if total > MAX_BYTES or cached.is_too_old:
                break
            name = cached.name[len(self.prefix) :]
            if local.pop(name, None) != cached.size:
                missing[name] = cached
        for name in local:
            os.remove(os.path.join(self.folder, name))
        for_each(list(missing), lambda name: self.download(missing[name]), MAX_PARALLEL_REQUESTS)
        return len(missing)

    def download(self, cached: CachedObject) -> None:
        path = os.path.join(self.folder, os.path.basename(cached.name))
        partial = os.path.join(self.folder, "." + os.path.basename(cached.name))
        with open(partial, "w+b", opener=private) as target:
            download(self.bucket, cached, target)
            target.seek(0)
            checksum = base64.b64encode(hashlib.md5(target.read()).digest()).decode()
        if checksum != cached.md5:
            raise OSError(f"{cached.name} was corrupted by the download")
        os.replace(partial, path)

    def upload_new(self, *, are_complete: bool) -> None:
        """Upload new files; unless all `are_complete`, only those that have not just changed."""
        with contextlib.suppress(FileNotFoundError):
            for entry in os.scandir(self.folder):
                age = time.time() - entry.stat().st_mtime
                is_complete = are_complete or age > SETTLE_SECONDS
                if is_complete and not entry.name.startswith("."):
                    self.upload(entry.name)

    def upload(self, name: str) -> None:
        if self.uploaded is None:
            objects = cached_objects(self.bucket, self.prefix)
            self.uploaded = {cached.name[len(self.prefix) :] for cached in objects}
        if name in self.uploaded:
            return
        with open(os.path.join(self.folder, name), "rb") as source:
            try:
                self.bucket.put(self.prefix + name, source, ifGenerationMatch=0)
            except HttpError as error:
                if error.code != 412:  # another worker uploaded it
                    raise
        self.uploaded.add(name)
        self.has_changed = True

    def prune(self) -> None:
        """Delete the oldest programs in the bucket if there are too many."""
        if self.has_changed:
            prune(self.bucket, self.prefix, MAX_BYTES)
            self.has_changed = False


def main(arguments: list[str]) -> int:
    folder = Folder(*arguments)
    spec = folder.read("spec.json")
    assert spec is not None
    bucket = Bucket(spec["bucket"])
    try:
        count = CompilationCache(spec, bucket).download_missing()
    except Exception as error:  # without them, JAX compiles: never a reason to fail
        folder.log(f"programs compiled before are not available: {error}")
    else:
        if count:
            programs = "1 compiled program" if count == 1 else f"{count} compiled programs"
            folder.log(f"downloaded {programs} from gs://{bucket.name}/{spec['cache']['compiled']}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
