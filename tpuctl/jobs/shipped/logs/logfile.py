"""The log of a job's attempt: a file that the script writes itself, with metadata next to it.

Like `supervisor.py`, whose programs share it, this file is sent to workers as it is: standard
library only, Python 3.8 and later.

Nothing in the log ever moves: byte N always stays byte N. Next to it are
    log_start.json  the first byte that is still in the file; those before it are in the bucket
    timestamps      the log's size over time: see `logindex.LogTimestamps`
"""

from __future__ import annotations

import contextlib
import os
import sys
import time

# The other shipped files are in this folder, as is the job's code: search it after the standard
# library.
sys.path.append(os.path.dirname(os.path.abspath(__file__)))
TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from tpuctl.jobs.shipped.logs.logindex import BLOCK_BYTES, LastLines, LogTimestamps, line_start
    from tpuctl.jobs.shipped.machine.folder import Folder, private
else:
    from folder import Folder, private
    from logindex import BLOCK_BYTES, LastLines, LogTimestamps, line_start

PAGE_BYTES = 1 << 12  # unit in which file systems free disk space
KEEP_SIZE, PUNCH_HOLE = 1, 2  # of fallocate: <linux/falloc.h>


class Freed(Exception):
    """The requested bytes are only in the bucket; `first` is the first byte still here."""

    def __init__(self, first: int) -> None:
        super().__init__(first)
        self.first = first


class Log:
    """One attempt's log. Only one process records its size, and only one frees its disk space."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.path = folder.file("log")
        self._timestamps: LogTimestamps | None = None

    def size(self) -> int:
        """Its size; 0 if it was deleted."""
        try:
            return os.path.getsize(self.path)
        except FileNotFoundError:
            return 0

    def first(self) -> int:
        """The first byte that is still here."""
        return int((self.folder.read("log_start.json") or {}).get("offset", 0))

    def read(self, begin: int, length: int) -> bytes:
        """Up to `length` bytes; none at or after the end. Raises Freed if they were freed."""
        try:
            handle = os.open(self.path, os.O_RDONLY)
            try:
                data = os.pread(handle, length, begin)
            finally:
                os.close(handle)
        except FileNotFoundError:
            data = b""
        # Check afterwards: log_start.json is written before bytes are freed.
        first = self.first()
        if begin < first:
            raise Freed(first)
        return data

    # Offsets --------------------------------------------------------------------------------

    def last_lines(self, lines: int, earliest: int) -> tuple[int, int]:
        """The offset of its last lines, at least `earliest`; and how many more of them may be in
        the freed part."""
        search = LastLines(self.size(), lines, earliest=earliest, readable=self.first())
        with contextlib.suppress(Freed):  # during the search
            while not search.is_over:
                search.feed(self.read(search.begin, search.length))
        return search.begins_at, search.lines

    def since(self, timestamp: float) -> int:
        """The offset of the first line written since a timestamp."""
        try:
            with open(self.folder.file("timestamps"), "rb") as source:
                offset = LogTimestamps(source.read()).length_at(timestamp)
        except FileNotFoundError:
            return 0
        begin = max(0, offset - BLOCK_BYTES)
        try:
            return line_start(self.read(begin, offset - begin + 1), begin, offset)
        except Freed:
            return offset

    # Maintenance ----------------------------------------------------------------------------

    def update(self) -> None:
        """Record its current length, and repair it if it was truncated or deleted. Never raises."""
        with contextlib.suppress(OSError):
            if self._timestamps is None:
                with open(self.folder.file("timestamps"), "a+b", opener=private) as source:
                    source.seek(0)
                    self._timestamps = LogTimestamps(source.read())
            size = self.size()
            if size < self._timestamps.length:
                size = self._repair(self._timestamps.length)
            line = self._timestamps.record(time.time(), size)
            if self._timestamps.is_long:
                self.folder.replace("timestamps", self._timestamps.thin())
            elif line is not None:
                with open(self.folder.file("timestamps"), "ab", opener=private) as target:
                    target.write(line)

    def _repair(self, length: int) -> int:
        """Restore its length, so that further output keeps its offset.

        Readers take the truncated part from the bucket; output to a deleted file is lost.
        """
        was_removed = not os.path.exists(self.path)
        self.folder.write("log_start.json", {"offset": length})
        with open(self.path, "ab", opener=private) as log:
            log.truncate(length)
        self.folder.log(
            "this log was deleted on the machine: further output of the job is lost"
            if was_removed
            else "this log was truncated on the machine: output not yet uploaded is lost"
        )
        return self.size()

    def free(self, uploaded: int, max_bytes: int) -> None:
        """If it takes more than `max_bytes` on disk, free uploaded bytes down to half of that.

        The first `uploaded` bytes are uploaded. Does nothing if the file system cannot free them.
        """
        until = min(uploaded, self.size() - max_bytes // 2) // PAGE_BYTES * PAGE_BYTES
        if self.size() - self.first() <= max_bytes or until <= self.first():
            return
        if not can_free(self.folder):
            return
        self.folder.write("log_start.json", {"offset": until})
        with open(self.path, "r+b") as log:
            punch(log.fileno(), until)


def can_free(folder: Folder) -> bool:
    """Whether the log's file system can free parts of files."""
    probe = folder.file(".freed")
    try:
        with open(probe, "w+b", opener=private) as file:
            file.write(b"x" * PAGE_BYTES)
            file.flush()
            punch(file.fileno(), PAGE_BYTES)
            return os.fstat(file.fileno()).st_size == PAGE_BYTES
    except (OSError, AttributeError):
        return False
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(probe)


def punch(handle: int, length: int) -> None:
    """Free the disk space of a file's first bytes, which then read as zeros; its size stays."""
    import ctypes  # it takes a while to load

    library = ctypes.CDLL(None, use_errno=True)
    mode = KEEP_SIZE | PUNCH_HOLE
    if library.fallocate(handle, mode, ctypes.c_int64(0), ctypes.c_int64(length)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
