"""Uploads a job's log and record from a worker to the bucket.

Like `supervisor.py`, which forks it, this file is sent to workers as it is and also runs as
`python3 -S -I uploader.py FOLDER`: standard library only, Python 3.8 and later. It is a separate
process, so that network errors never affect the job or its supervisor; they communicate through
files in the attempt's folder.

    log, timestamps, record.json -> bucket while they change; end.json of the bucket -> folder;
    hang_report.json -> hang.json in the bucket -> hang.json, with several workers;
    compiled programs -> bucket;
    value.json, what a function returned -> bucket, at the end;
    what happens to the job -> notifications in the bucket, which another process sends;
    upload_error.json exists while the bucket is unavailable;
    exits with 0 once a final record is in the bucket

It frees the older, uploaded parts of a log that takes too much disk space.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time

# The other shipped files are in this folder, as is the job's code: search it after the standard
# library.
sys.path.append(os.path.dirname(os.path.abspath(__file__)))
TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from typing import Any

    from tpuctl.jobs.shipped.downloads.compilation_cache import CompilationCache
    from tpuctl.jobs.shipped.logs.logfile import Freed, Log
    from tpuctl.jobs.shipped.machine.folder import ENDED, Folder, private, wait_for_lock
    from tpuctl.jobs.shipped.machine.storage import Bucket, HttpError
    from tpuctl.jobs.shipped.notifications.bell import JobBell
    from tpuctl.jobs.shipped.supervision.start_barrier import StartBarrier
else:
    from bell import JobBell
    from compilation_cache import CompilationCache
    from folder import ENDED, Folder, private, wait_for_lock
    from logfile import Freed, Log
    from start_barrier import StartBarrier
    from storage import Bucket, HttpError

CHUNK_BYTES = 8 * 1024 * 1024  # maximum of log held in memory
MAX_LOG_DISK_BYTES = 1 << 30  # maximum disk usage of a log, as far as it is uploaded
HANG_POLL_SECONDS = 30.0
SYNCS_PER_TIMESTAMPS = 12  # the timestamps, some kilobytes, are uploaded less often
TICK = 0.25
START_POLL_SECONDS = 1.0  # between checks for the start signal
MAX_START_POLLS = 32  # checks per second by all workers together


class Mirror:
    """Keeps the bucket's copy of one attempt on one worker.

    Each sync uploads what the log gained and appends it on the server, so that the cost does not
    grow with the log; an object may have any number of components
    (cloud.google.com/storage/docs/composite-objects). The copy is always a prefix of the log: after
    any failure its size says where to continue. A record is uploaded after the log it describes.
    """

    def __init__(self, folder: str, spec: dict[str, Any]) -> None:
        self.folder = folder
        self.log = Log(Folder(folder))
        self.max_disk_bytes = int(spec.get("log_disk_bytes", MAX_LOG_DISK_BYTES))
        self.bucket = Bucket(spec["bucket"])
        self.prefix = spec["prefix"]
        self.name = f"{self.prefix}/worker-{spec['worker']}"
        self.compiled = CompilationCache(spec, self.bucket) if spec.get("cache") else None
        self.bell = JobBell(folder, spec, self.bucket)
        self.start_barrier = StartBarrier(Folder(folder), spec, self.bucket)
        self.interval = float(spec.get("sync_seconds", 5))
        followers = 0 if self.start_barrier.is_first else len(self.start_barrier.workers)
        self.start_interval = max(START_POLL_SECONDS, followers / MAX_START_POLLS)
        self.uploaded_record: dict[str, Any] | None = None
        self.copy: tuple[int, int] | None = None  # length and generation, None if unknown
        self.timestamps = b""  # as uploaded last
        self.timestamps_due = time.monotonic() + self.interval * SYNCS_PER_TIMESTAMPS
        self.has_hang_watch = bool(spec.get("hang") and self.start_barrier.workers)
        self.hang_report: dict[str, Any] | None = None  # as uploaded last
        self.hang_due = 0.0
        self.is_complete = False

    def run(self) -> None:
        """Mirror until a final record is in the bucket, or the supervisor is gone."""
        supervisor = os.getppid()
        due, delay = 0.0, 1.0
        while not self.is_complete and os.getppid() == supervisor:
            record = Folder(self.folder).read("record.json")
            has_changed = record != self.uploaded_record and delay == 1.0
            if record is None or not (has_changed or time.monotonic() >= due):
                time.sleep(TICK)
                continue
            try:
                self.sync(record)
                self.clear_error()
                delay = 1.0
                is_waiting = record["state"] == "ready"  # for the start signal
                due = time.monotonic() + (self.start_interval if is_waiting else self.interval)
            except Exception:
                import traceback

                traceback.print_exc()
                self.record_error()
                self.copy = None
                delay = min(delay * 2, 30.0)
                due = time.monotonic() + delay

    def sync(self, record: dict[str, Any]) -> None:
        has_ended = record["state"] in ENDED
        length = self.append(self.log.size())
        self.upload_timestamps(is_last=has_ended)
        self.log.free(length, self.max_disk_bytes)
        if record != self.uploaded_record:
            has_failed = has_ended and record["state"] != "succeeded"
            is_first = has_failed and record["cause"] != "worker" and self.publish_end(record)
            if has_ended:
                self.upload_value()
            is_shared_end = self.bell.is_shared_end(record)
            if not is_shared_end:
                self.bell.update(record, is_first_end=is_first)
            self.bucket.put(self.name + ".json", json.dumps(record).encode())
            if is_shared_end:
                self.bell.update(record)
            self.uploaded_record = record
            self.is_complete = has_ended
        self.bell.send()
        end = None if self.is_complete else self.bucket.read(self.prefix + "/end.json")
        if end is not None:
            save(self.folder, "end.json", end)
        elif not has_ended:
            self.start_barrier.poll(record["state"])
            if self.has_hang_watch and record["state"] == "running":
                self.share_hang()
        self.upload_compiled(record)  # last: nothing else waits for it

    def upload_compiled(self, record: dict[str, Any]) -> None:
        """Upload compiled programs; that this fails is of no consequence for the job.

        A process that was killed may have left an incomplete one.
        """
        if self.compiled is None or record["state"] in ("preparing", "ready"):
            return
        has_ended = record["state"] in ENDED
        if has_ended and record["signal"] is not None:
            return
        try:
            self.compiled.upload_new(are_complete=has_ended)
            if has_ended:
                self.compiled.prune()
        except Exception:
            import traceback

            traceback.print_exc()

    def append(self, size: int) -> int:
        """Extend the copy to at least this size; return its length."""
        log, part = self.name + ".log", self.name + ".part"
        length, generation = self.copy or self.bucket.stat(log)
        was_joined = False
        self.copy = None  # unknown until all requests have succeeded
        while length < size:
            chunk = self.read_log(length, min(CHUNK_BYTES, size - length))
            if not chunk:
                break  # it was just truncated: the supervisor restores its length
            if generation == 0:
                generation = self.bucket.put(log, chunk, ifGenerationMatch=0)
            else:
                added = self.bucket.put(part, chunk)
                generation = self.bucket.join(log, generation, part, added)
                was_joined = True
            length += len(chunk)
        self.copy = (length, generation)
        if was_joined:
            self.bucket.delete(part)
        return length

    def read_log(self, begin: int, length: int) -> bytes:
        """Bytes of the log; truncated ones are zeros, so that byte N stays byte N."""
        try:
            return self.log.read(begin, length)
        except Freed as freed:
            return bytes(min(length, freed.first - begin))

    def upload_timestamps(self, *, is_last: bool) -> None:
        if not is_last and time.monotonic() < self.timestamps_due:
            return
        self.timestamps_due = time.monotonic() + self.interval * SYNCS_PER_TIMESTAMPS
        try:
            with open(os.path.join(self.folder, "timestamps"), "rb") as source:
                timestamps = source.read()
        except FileNotFoundError:
            return
        if timestamps != self.timestamps:
            self.bucket.put(self.name + ".timestamps", timestamps)
            self.timestamps = timestamps

    def upload_value(self) -> None:
        """Upload what the function of the job returned or raised; other jobs have no such file."""
        with contextlib.suppress(FileNotFoundError):
            with open(os.path.join(self.folder, "value.json"), "rb") as source:
                self.bucket.put(self.name + ".value.json", source)

    def share_hang(self) -> None:
        """Report a hang to the other workers, and read theirs."""
        report = Folder(self.folder).read("hang_report.json")
        if report is not None and report != self.hang_report:
            self.bucket.put(self.prefix + "/hang.json", json.dumps(report).encode())
            self.hang_report = report
        elif time.monotonic() >= self.hang_due:
            self.hang_due = time.monotonic() + HANG_POLL_SECONDS
            hang = self.bucket.read(self.prefix + "/hang.json")
            if hang is not None:
                save(self.folder, "hang.json", hang)

    def record_error(self) -> None:
        """Let readers of the log stop waiting for uploads that may never complete."""
        with contextlib.suppress(OSError):  # the disk may be full
            save(self.folder, "upload_error.json", {})

    def clear_error(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(self.folder, "upload_error.json"))

    def publish_end(self, record: dict[str, Any]) -> bool:
        """Publish the failure unless another worker already published one; whether it is ours."""
        name = self.prefix + "/end.json"
        try:
            self.bucket.put(name, json.dumps(record).encode(), ifGenerationMatch=0)
        except HttpError as error:
            if error.code != 412:
                raise
            end = self.bucket.read(name) or {}
            return bool(end.get("worker") == record["worker"])
        return True


def save(folder: str, name: str, value: dict[str, Any]) -> None:
    temporary = os.path.join(folder, f".{name}.{os.getpid()}")
    with open(temporary, "w", encoding="utf-8", opener=private) as target:
        json.dump(value, target)
    os.replace(temporary, os.path.join(folder, name))


def main(arguments: list[str]) -> int:
    (folder,) = arguments
    spec = Folder(folder).read("spec.json")
    assert spec is not None
    # The uploader of a killed supervisor may be in the middle of a sync.
    wait_for_lock(os.path.join(folder, "uploader.lock"))
    mirror = Mirror(folder, spec)
    mirror.run()
    return 0 if mirror.is_complete else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
