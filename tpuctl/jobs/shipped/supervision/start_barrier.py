"""The start signal of an attempt's workers through the bucket, if it does not come over SSH.

Used by `uploader.py`, this file is sent to workers as it is: standard library only, Python 3.8 and
later. In the bucket, below the attempt: `ready/<worker>` for each worker that waits, and `start`
once the first worker, which sends the signal, has seen all of them.
"""

from __future__ import annotations

import os
import sys

# The other shipped files are in this folder, as is the job's code: search it after the standard
# library.
sys.path.append(os.path.dirname(os.path.abspath(__file__)))
TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from typing import Any

    from tpuctl.jobs.shipped.machine.folder import Folder
    from tpuctl.jobs.shipped.machine.storage import Bucket, HttpError
else:
    from folder import Folder
    from storage import Bucket, HttpError

START_SIGNAL = "start"  # only its existence counts


class StartBarrier:
    """Waits for the workers of an attempt to become ready, on behalf of one of them."""

    def __init__(self, folder: Folder, spec: dict[str, Any], bucket: Bucket) -> None:
        self.folder = folder
        self.bucket = bucket
        self.prefix = spec["prefix"]
        self.worker = spec["worker"]
        self.workers = (spec.get("start_barrier") or {}).get("workers", [])
        self.is_first = self.workers[:1] == [self.worker]
        self.has_reported = False

    def poll(self, state: str) -> None:
        """Report that this worker is ready, and check whether all are."""
        if not self.workers:
            return
        has_signal = os.path.exists(self.folder.file(START_SIGNAL))
        if not has_signal and state == "ready":
            if self.signal_if_ready() if self.is_first else self.is_signaled():
                self.folder.write(START_SIGNAL, {"by": self.workers[0]})
        elif has_signal and self.is_first and not self.has_reported:
            self.signal()  # it came over SSH, but perhaps not to all workers

    def is_signaled(self) -> bool:
        """Whether the signal was sent."""
        if not self.has_reported:
            self.bucket.put(f"{self.prefix}/ready/{self.worker}", b"{}")
            self.has_reported = True
        return self.bucket.read(f"{self.prefix}/{START_SIGNAL}") is not None

    def signal_if_ready(self) -> bool:
        """Send the signal if all other workers are ready; return whether they are."""
        prefix = f"{self.prefix}/ready/"
        ready = {int(name[len(prefix) :]) for name in self.bucket.names(prefix)}
        missing = sorted({*self.workers} - ready - {self.worker})
        if missing:
            self.folder.write("missing.json", {"workers": missing})
        else:
            self.signal()
        return not missing

    def signal(self) -> None:
        """Send the signal to all workers through the bucket."""
        try:
            self.bucket.put(f"{self.prefix}/{START_SIGNAL}", b"{}", ifGenerationMatch=0)
        except HttpError as error:
            if error.code != 412:
                raise
        self.has_reported = True
