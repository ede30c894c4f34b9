"""Streams an attempt's log from an offset, as it grows.

Like `supervisor.py`, whose commands these are, this file is sent to workers as it is: standard
library only, Python 3.8 and later.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import time

# The other shipped files are in this folder, as is the job's code: search it after the standard
# library.
sys.path.append(os.path.dirname(os.path.abspath(__file__)))
TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from tpuctl.jobs.shipped.logs.logfile import Freed, Log
    from tpuctl.jobs.shipped.machine.folder import ENDED, Folder
else:
    from folder import ENDED, Folder
    from logfile import Freed, Log

FREED = 4  # exit code: the requested bytes are only in the bucket
CHUNK_BYTES = 1 << 18  # bytes of log held in memory
BATCH_SECONDS = 0.005  # seconds after some bytes, so that many small writes are sent together
RECORD_POLL_SECONDS = 1.0  # seconds between checks whether the supervisor still runs
UPLOAD_WAIT = 10.0  # seconds after a job's end to wait for a failing upload
LOG_POLL_SECONDS = 0.05  # seconds between checks of the log without inotify
MODIFY, MOVED_TO = 0x2, 0x80  # of inotify: <sys/inotify.h>


def tail(folder: Folder, offset: int, follow: bool, ensure: Callable[[], dict[str, Any]]) -> int:
    """Write the log from an offset to stdout; at the end of a finished job, its record to stderr.

    The record follows all bytes, once the bucket has them too, since the machine may then be
    deleted; a failing upload is waited for a few seconds. If the requested bytes were freed, the
    exit code is FREED, and stderr contains the first one that is left. `ensure` ensures that the
    job is supervised, and returns its record.
    """
    record = ensure()
    log = Log(folder)
    changes = Changes(folder) if follow else None
    checked_at = time.monotonic()
    ended_at: float | None = None
    while True:
        now = time.monotonic()
        if ended_at is None and record["state"] in ENDED:
            ended_at = now
        try:
            chunk = log.read(offset, CHUNK_BYTES)
        except Freed as freed:
            print(json.dumps({"first": freed.first}), file=sys.stderr)
            return FREED
        write(chunk)
        offset += len(chunk)
        if len(chunk) == CHUNK_BYTES:
            continue
        # Everything that was written before the record was read.
        if changes is None:
            break
        if ended_at is not None:
            is_late = now - ended_at >= UPLOAD_WAIT and folder.read("upload_error.json") is not None
            if record["log_uploaded"] is not None or is_late:
                break
        if chunk:
            time.sleep(BATCH_SECONDS)
        elif changes.has_reader_left(RECORD_POLL_SECONDS):
            return 0
        if changes.is_record_new or time.monotonic() - checked_at >= RECORD_POLL_SECONDS:
            checked_at = time.monotonic()
            record = ensure()
    print(json.dumps(record), file=sys.stderr)
    return 0


def locate(folder: Folder, lines: int | None, since: float | None) -> dict[str, int]:
    """The offset to begin at; up to `more` of the requested lines are before it, only in the
    bucket, but none before `earliest`."""
    log = Log(folder)
    earliest = 0 if since is None else log.since(since)
    offset, more = (earliest, 0) if lines is None else log.last_lines(lines, earliest)
    return {"offset": offset, "more": more, "earliest": earliest}


def write(data: bytes) -> None:
    written = 0
    while written < len(data):
        written += os.write(1, data[written:])


class Changes:
    """Waits for changes of the log or the record, by inotify or by polling."""

    def __init__(self, folder: Folder) -> None:
        self.is_record_new = False
        self._poll = select.poll()
        self._poll.register(1, 0)  # POLLERR and POLLHUP are always reported: the reader left
        self._handle = -1
        with contextlib.suppress(AttributeError, OSError):
            import ctypes  # it takes a while to load

            library = ctypes.CDLL(None)
            handle = library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            path = os.fsencode(folder.path)
            if handle >= 0 and library.inotify_add_watch(handle, path, MODIFY | MOVED_TO) >= 0:
                self._handle = handle
                self._poll.register(handle, select.POLLIN)

    def has_reader_left(self, seconds: float) -> bool:
        """Wait for a change, up to a timeout. True if the reader has gone."""
        self.is_record_new = False
        timeout = seconds if self._handle >= 0 else min(seconds, LOG_POLL_SECONDS)
        for handle, _ in self._poll.poll(timeout * 1000):
            if handle == 1:
                return True
            self.is_record_new = b"record.json" in os.read(handle, 1 << 16)
        return False
