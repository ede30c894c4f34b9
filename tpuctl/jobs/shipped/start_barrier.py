"""The sign by which the workers of one attempt start together, when nobody gives it over SSH.

Like `uploader.py`, whose work this is, this file is sent to workers as it is: standard library
only, Python 3.8 and later. In the bucket, below the attempt: `ready/<worker>` of each worker that
waits, and `go` once the first of them, the one that gives the sign, has seen them all.
"""

from __future__ import annotations

import os
import sys
import urllib.error
from typing import TYPE_CHECKING, Any

# What is sent along lies beside this file, and after the standard library: the job's own code is
# in that folder too.
sys.path.append(os.path.dirname(os.path.abspath(__file__)))
if TYPE_CHECKING:
    from tpuctl.jobs.shipped.folder import Folder
    from tpuctl.jobs.shipped.storage import Bucket
else:
    from folder import Folder
    from storage import Bucket

__all__ = ["Together"]

SIGN = "go"  # its being there is all that counts


class Together:
    """What one worker's courier says and hears of the others before they start."""

    def __init__(self, folder: Folder, spec: dict[str, Any], bucket: Bucket) -> None:
        self.folder = folder
        self.bucket = bucket
        self.prefix = spec["prefix"]
        self.worker = spec["worker"]
        self.workers = (spec.get("together") or {}).get("workers", [])
        self.is_first = self.workers[:1] == [self.worker]
        self.has_told = False

    def look(self, state: str) -> None:
        """One turn: say that this worker is ready, see whether all are."""
        if not self.workers:
            return
        is_given = os.path.exists(self.folder.file(SIGN))
        if not is_given and state == "ready":
            if self.seek() if self.is_first else self.hear():
                self.folder.write(SIGN, {"by": self.workers[0]})
        elif is_given and self.is_first and not self.has_told:
            self.give()  # it came over SSH, and perhaps not to all of them

    def hear(self) -> bool:
        """Whether the sign was given."""
        if not self.has_told:
            self.bucket.put(f"{self.prefix}/ready/{self.worker}", b"{}")
            self.has_told = True
        return self.bucket.read(f"{self.prefix}/{SIGN}") is not None

    def seek(self) -> bool:
        """Give the sign if all of the others are ready; whether they are."""
        place = f"{self.prefix}/ready/"
        ready = {int(name[len(place) :]) for name in self.bucket.names(place)}
        missing = sorted({*self.workers} - ready - {self.worker})
        if missing:
            self.folder.write("missing.json", {"workers": missing})
        else:
            self.give()
        return not missing

    def give(self) -> None:
        """Let all workers have the sign that have not."""
        try:
            self.bucket.put(f"{self.prefix}/{SIGN}", b"{}", ifGenerationMatch=0)
        except urllib.error.HTTPError as error:
            if error.code != 412:
                raise
        self.has_told = True
