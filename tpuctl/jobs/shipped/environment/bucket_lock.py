"""A lock in the bucket, so that of many workers one does what the others then use.

Used by `environment_store.py` and `tools.py`, this file is sent to workers as it is: standard
library only, Python 3.8 and later. A lock is an object that names its holder. It is rewritten
while it is held, so that it is not stale; that of an earlier attempt of the job, which has ended,
is taken at once.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import sys
import threading
import time

# The other shipped files are in this folder, as is the job's code: search it after the standard
# library.
sys.path.append(os.path.dirname(os.path.abspath(__file__)))
TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from tpuctl.jobs.shipped.downloads.bucket_cache import CachedObject, cached_objects
    from tpuctl.jobs.shipped.machine.folder import Folder, private
    from tpuctl.jobs.shipped.machine.storage import Bucket, HttpError
    from tpuctl.jobs.shipped.machine.worker_names import worker_name
else:
    from bucket_cache import CachedObject, cached_objects
    from folder import Folder, private
    from storage import Bucket, HttpError
    from worker_names import worker_name

POLL_SECONDS = 2.0
MAX_POLLS = 32  # per second, by all workers together
RENEWAL_SECONDS = 15.0
LEASE_SECONDS = 60.0  # a lock that was not rewritten for so long is stale
MAX_WAIT_SECONDS = 1200.0  # for another worker
# Errors of the bucket, and of content that is not tpuctl's.
UNAVAILABLE = (OSError, http.client.HTTPException, LookupError, TypeError, ValueError)


class BucketLock:
    """The lock of one folder of the bucket, for one worker."""

    def __init__(self, folder: Folder, spec: dict[str, Any], bucket: Bucket, prefix: str) -> None:
        self.folder = folder
        self.bucket = bucket
        self.prefix = prefix
        self.name = prefix + "lock"
        self.job = " of job {job}".format(**spec)
        self.machine = machine_id(os.path.expanduser("~/.tpuctl/machine_id"))
        worker = f"worker {worker_name(spec, spec['worker'])}{self.job}"
        self.attempt = {"job": spec["job"], "attempt": spec["attempt"]}
        self.holder = {"worker": worker, "machine": self.machine, **self.attempt}
        self.lease_seconds = float((spec.get("cache") or {}).get("lease_seconds", LEASE_SECONDS))
        workers = (spec.get("start_barrier") or {}).get("workers", ())
        self.poll_seconds = max(POLL_SECONDS, len(workers) / MAX_POLLS)
        self.generation = 0
        self.changed_at = 0.0
        self.is_held = False

    def use_or_lock(self, use: Callable[[list[CachedObject]], bool | None], work: str) -> bool:
        """Wait until the folder's objects can be used (True), or this worker has the lock, or has
        waited too long (False).

        `use` returns None as long as there is nothing to use, and False for what cannot be used.
        `work` is what another holder of the lock does: "installs the packages".
        """
        deadline = time.monotonic() + MAX_WAIT_SECONDS
        is_waiting = False
        while time.monotonic() < deadline:
            objects = cached_objects(self.bucket, self.prefix)
            is_used = use(objects)
            if is_used:
                return True
            if is_used is None and self.is_held:
                return False
            if is_used is None and not self.acquire(
                [entry for entry in objects if entry.name == self.name]
            ):
                if not is_waiting:
                    worker = self.current_holder()["worker"].replace(self.job, "")
                    self.folder.log(f"waiting for {worker}, which {work}")
                is_waiting = True
                time.sleep(self.poll_seconds)
        return False

    def acquire(self, existing: list[CachedObject]) -> bool:
        """Take the lock, unless another worker has it; `existing` is the lock, if it exists."""
        generation, now = existing[0].generation if existing else 0, time.monotonic()
        if generation != self.generation:
            self.generation, self.changed_at = generation, now
        is_stale = now - self.changed_at > self.lease_seconds
        if generation and not is_stale and not self.is_left_over(self.current_holder()):
            return False
        try:
            self.write()
        except HttpError as error:
            if error.code != 412:  # another worker was faster
                raise
            return False
        self.is_held = True
        return True

    def is_left_over(self, holder: dict[str, Any]) -> bool:
        """Whether the holder cannot be working any more.

        Only one process of a machine gets here at a time. An attempt starts after the machines of
        the one before are gone, or its processes stopped.
        """
        if holder["machine"] == self.machine:
            return True
        attempt = holder.get("attempt")
        is_same_job = holder.get("job") == self.attempt["job"]
        return is_same_job and isinstance(attempt, int) and attempt < self.attempt["attempt"]

    def current_holder(self) -> dict[str, Any]:
        """The worker and machine that have the lock, as `self.holder`."""
        content: dict[str, Any] | None = self.bucket.read(self.name)
        return content or {"worker": "another worker", "machine": ""}

    def release(self) -> None:
        self.bucket.delete(self.name, ifGenerationMatch=self.generation)
        self.is_held, self.generation = False, 0

    def write(self) -> None:
        text = json.dumps(self.holder).encode()
        self.generation = self.bucket.put(self.name, text, ifGenerationMatch=self.generation)

    @contextlib.contextmanager
    def renewed(self) -> Iterator[None]:
        """Renew the lock, which is held, until the end of the block, and release it then."""
        ended = threading.Event()
        renewal = threading.Thread(target=self.renew, args=(ended,), daemon=True)
        renewal.start()
        try:
            yield
        finally:
            ended.set()
            renewal.join()
            with contextlib.suppress(*UNAVAILABLE):
                self.release()

    def renew(self, ended: threading.Event) -> None:
        while not ended.wait(RENEWAL_SECONDS):
            with contextlib.suppress(*UNAVAILABLE):
                self.write()


def machine_id(path: str) -> str:
    """A random name of this machine, saved at `path`."""
    with open(path, "a+", encoding="utf-8", opener=private) as file:
        file.seek(0)
        name = file.read()
        if not name:
            name = os.urandom(8).hex()
            file.write(name)
    return name
