"""Environments in the bucket: one worker installs, and the others and later attempts unpack.

Used by `environment.py`, this file is sent to workers as it is: standard library only, Python 3.8
and later. In the bucket, below a folder for each environment:

    lock           the worker that installs it; see `bucket_lock.py`
    SHA256.tar.gz  the installed files, named by the content of the archive

Without a usable bucket, each worker installs for itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import sys
import tarfile

# The other shipped files are in this folder, as is the job's code: search it after the standard
# library.
sys.path.append(os.path.dirname(os.path.abspath(__file__)))
TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import IO, Any

    from tpuctl.jobs.shipped.downloads.bucket_cache import CachedObject, download, prune
    from tpuctl.jobs.shipped.environment.bucket_lock import UNAVAILABLE, BucketLock
    from tpuctl.jobs.shipped.environment.run_once import Failure
    from tpuctl.jobs.shipped.machine.folder import Folder, private
    from tpuctl.jobs.shipped.machine.storage import Bucket, HttpError
else:
    from bucket_cache import CachedObject, download, prune
    from bucket_lock import UNAVAILABLE, BucketLock
    from folder import Folder, private
    from run_once import Failure
    from storage import Bucket, HttpError

ARCHIVE = ".tar.gz"
MAX_BYTES = 10_000_000_000  # of all environments in the bucket
COMPRESSION_LEVEL = 1  # at three times the speed of the default
# In scripts, instead of the path of the virtual environment, which differs between machines.
PLACEHOLDER = b"@TPUCTL_ENVIRONMENT@"


class EnvironmentStore:
    """One environment in the bucket, for one worker."""

    def __init__(self, folder: Folder, spec: dict[str, Any], key: str) -> None:
        self.folder = folder
        self.bucket = Bucket(spec["bucket"])
        self.root: str = spec["cache"]["environments"]
        self.prefix = f"{self.root}/{key}/"
        self.lock = BucketLock(folder, spec, self.bucket, self.prefix)

    def provide(self, home: str, virtual_env: str, install: Callable[[], None]) -> str:
        """Add the packages to the folder `home`, by `install` if the bucket does not have them.

        Scripts of the packages run the Python of `virtual_env`. Returns what was done, with `{}`
        in place of what the packages are.
        """
        existing = set(files_of(home))
        try:
            if self.unpack_or_lock(home, virtual_env):
                return f"unpacked {{}} from the bucket ({count_packages(home, existing)})"
        except UNAVAILABLE as error:
            self.folder.log(f"gs://{self.bucket.name}/{self.prefix} is not available: {error}")
        if not self.lock.is_held:
            install()
            return f"installed {{}} ({count_packages(home, existing)})"
        with self.lock.renewed():
            install()
            is_stored = self.store(home, virtual_env, existing)
        stored = ", stored in the bucket" if is_stored else ""
        return f"installed {{}} ({count_packages(home, existing)}{stored})"

    def unpack_or_lock(self, home: str, virtual_env: str) -> bool:
        """Wait until the environment is unpacked (True), or this worker should install it."""

        def use(objects: list[CachedObject]) -> bool | None:
            archives = [entry for entry in objects if entry.name.endswith(ARCHIVE)]
            if not archives or archives[0].is_too_old:
                return None
            if self.lock.is_held:  # another worker stored it just before this one took the lock
                self.lock.release()
            return self.unpack(archives[0], home, virtual_env)

        return self.lock.use_or_lock(use, "installs the packages")

    # Archives --------------------------------------------------------------------------------

    def store(self, home: str, virtual_env: str, existing: set[str]) -> bool:
        """Upload the files that are not `existing`; returns whether they can be used elsewhere."""
        added = sorted(set(files_of(home)) - existing)
        if any(is_editable(os.path.join(home, name)) for name in added):
            return False  # they refer to a folder of this job
        path = home + ARCHIVE
        try:
            with open(path, "w+b", opener=private) as archive:
                pack(archive, home, virtual_env, added)
                name = f"{self.prefix}{sha256(archive)}{ARCHIVE}"
                archive.seek(0)
                self.bucket.put(name, archive)
            prune(self.bucket, self.root + "/", MAX_BYTES)
        except UNAVAILABLE as error:
            self.folder.log(f"the packages could not be stored in the bucket: {error}")
            return False
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)
        return True

    def unpack(self, cached: CachedObject, home: str, virtual_env: str) -> bool:
        """Unpack an archive; False if it was corrupt, and deleted in the bucket."""
        path = home + ARCHIVE
        try:
            with open(path, "w+b", opener=private) as archive:
                download(self.bucket, cached, archive)
                if sha256(archive) + ARCHIVE != cached.name[len(self.prefix) :]:
                    self.folder.log(f"deleting a corrupt archive: {cached.name}")
                    self.bucket.delete(cached.name, ifGenerationMatch=cached.generation)
                    return False
                archive.seek(0)
                extract(archive, home, virtual_env)
            return True
        except HttpError as error:
            if error.code != 404:  # deleted in the meantime
                raise
            return False
        finally:
            os.remove(path)


def files_of(home: str) -> Iterator[str]:
    """The paths of all files, relative to `home`; links are none."""
    for folder, _, names in os.walk(home):
        for name in names:
            path = os.path.join(folder, name)
            if not os.path.islink(path):
                yield os.path.relpath(path, home)


def is_editable(path: str) -> bool:
    """Whether a file of an installation says that its package is in a folder elsewhere."""
    if path.endswith(".egg-link"):
        return True
    if os.path.basename(path) != "direct_url.json":
        return False
    with open(path, encoding="utf-8") as source:
        return bool(json.load(source).get("dir_info", {}).get("editable"))


def count_packages(home: str, existing: set[str]) -> str:
    """The number of packages among the files that are not `existing`."""
    added = {os.path.dirname(name) for name in files_of(home) if name not in existing}
    count = sum(name.endswith(".dist-info") for name in added)
    return f"{count} package{'' if count == 1 else 's'}"


def sha256(archive: IO[bytes]) -> str:
    checksum = hashlib.sha256()
    archive.seek(0)
    for data in iter(lambda: archive.read(1 << 20), b""):
        checksum.update(data)
    return checksum.hexdigest()


def pack(target: IO[bytes], home: str, virtual_env: str, names: list[str]) -> None:
    """Write files to an archive. They keep their times, by which Python knows its bytecode."""
    with tarfile.open(fileobj=target, mode="w:gz", compresslevel=COMPRESSION_LEVEL) as archive:
        for name in names:
            path = os.path.join(home, name)
            info = tarfile.TarInfo(name)
            status = os.stat(path)
            info.size, info.mtime, info.mode = status.st_size, int(status.st_mtime), status.st_mode
            with open(path, "rb") as source:
                if is_script(source):
                    text = source.read().replace(virtual_env.encode(), PLACEHOLDER)
                    info.size = len(text)
                    archive.addfile(info, io.BytesIO(text))
                else:
                    archive.addfile(info, source)


def extract(source: IO[bytes], home: str, virtual_env: str) -> None:
    """Write the files of an archive, whose checksum was verified. Raises Failure."""
    try:
        write_files(source, home, virtual_env)
    except OSError as error:
        raise Failure(f"cannot unpack the environment: {error}") from error


def write_files(source: IO[bytes], home: str, virtual_env: str) -> None:
    with tarfile.open(fileobj=source, mode="r:gz") as archive:
        for member in archive:
            path = os.path.normpath(os.path.join(home, member.name))
            content = archive.extractfile(member)
            if content is None or not path.startswith(home + os.sep):
                raise Failure(f"{member.name!r} is not a file of an environment")
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as target:
                if is_script(content):
                    target.write(content.read().replace(PLACEHOLDER, virtual_env.encode()))
                else:
                    shutil.copyfileobj(content, target)
            os.chmod(path, member.mode & 0o777)
            os.utime(path, (member.mtime, member.mtime))


def is_script(source: IO[bytes]) -> bool:
    """Whether a file is a program with an interpreter; reading starts at its beginning again."""
    start = source.read(2)
    source.seek(0)
    return start == b"#!"
