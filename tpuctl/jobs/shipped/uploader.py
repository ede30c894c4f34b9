"""Carries a job's log and record from a worker to the bucket.

Like `supervisor.py`, which starts it, this file is sent to workers as it is and runs there as
`python3 -S -I uploader.py FOLDER`: standard library only, Python 3.8 and later. It is a process of
its own, so that no network trouble ever reaches the job or its supervision; the two speak through
files of the attempt's folder.

    log, moments, record.json -> bucket while they change; end.json of the bucket -> folder;
    trouble.json is there while the bucket cannot be had;
    ends with 0 once a final record is in the bucket

Once the bucket has them, it frees the older parts of a log that takes too much room here.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import time
import traceback
import urllib.error
from typing import TYPE_CHECKING, Any

# What is sent along lies beside this file, and after the standard library: the job's own code is
# in that folder too.
sys.path.append(os.path.dirname(os.path.abspath(__file__)))
if TYPE_CHECKING:
    from tpuctl.jobs.shipped.folder import ENDED, Folder
    from tpuctl.jobs.shipped.logfile import Freed, Log
    from tpuctl.jobs.shipped.start_barrier import Together
    from tpuctl.jobs.shipped.storage import Bucket, load, private
else:
    from folder import ENDED, Folder
    from logfile import Freed, Log
    from start_barrier import Together
    from storage import Bucket, load, private

__all__ = ["main"]

CHUNK = 8 * 1024 * 1024  # most bytes of log held in memory
ROOM = 1 << 30  # bytes that a log may take on the machine, once the bucket has them
RARELY = 12  # turns in which the moments are sent once: some kilobytes, of a log that is there
TICK = 0.25
WAITING = 1.0  # seconds between looks for the sign to start


class Mirror:
    """Keeps the bucket's copy of one attempt on one worker.

    Each turn uploads what the log gained and appends it on the server, so that the cost does not
    grow with the log; an object may have any number of components
    (cloud.google.com/storage/docs/composite-objects). The copy is always a prefix of the log: after
    any failure its size says where to go on. A record goes up after the log it speaks of.
    """

    def __init__(self, folder: str, spec: dict[str, Any]) -> None:
        self.folder = folder
        self.log = Log(Folder(folder))
        self.room = int(spec.get("log_room", ROOM))
        self.bucket = Bucket(spec["bucket"])
        self.prefix = spec["prefix"]
        self.name = f"{self.prefix}/worker-{spec['worker']}"
        self.together = Together(Folder(folder), spec, self.bucket)
        self.interval = float(spec.get("sync_seconds", 5))
        self.sent: dict[str, Any] | None = None
        self.copy: tuple[int, int] | None = None  # length and generation, None when not known
        self.moments = b""  # as the bucket has them
        self.moments_due = time.monotonic() + self.interval * RARELY
        self.is_complete = False

    def run(self) -> None:
        """Mirror until a final record is in the bucket, or the supervisor is gone."""
        supervisor = os.getppid()
        due, delay = 0.0, 1.0
        while not self.is_complete and os.getppid() == supervisor:
            record = load(self.folder, "record.json")
            is_news = record != self.sent and delay == 1.0
            if record is None or not (is_news or time.monotonic() >= due):
                time.sleep(TICK)
                continue
            try:
                self.turn(record)
                self.forget_trouble()
                delay = 1.0
                is_waiting = record["state"] == "ready"  # and so are all the others
                due = time.monotonic() + (WAITING if is_waiting else self.interval)
            except Exception:
                traceback.print_exc()
                self.note_trouble()
                self.copy = None
                delay = min(delay * 2, 30.0)
                due = time.monotonic() + delay

    def turn(self, record: dict[str, Any]) -> None:
        has_ended = record["state"] in ENDED
        length = self.append(self.log.size())
        self.send_moments(is_last=has_ended)
        self.log.free(length, self.room)
        if record != self.sent:
            if has_ended and record["state"] != "succeeded" and record["first_cause"] != "worker":
                self.tell_the_others(record)
            self.bucket.put(self.name + ".json", json.dumps(record).encode())
            self.sent = record
            self.is_complete = has_ended
        end = None if self.is_complete else self.bucket.read(self.prefix + "/end.json")
        if end is not None:
            save(self.folder, "end.json", end)
        elif not has_ended:
            self.together.look(record["state"])

    def append(self, size: int) -> int:
        """Bring the copy up to this size at least; how long it is then."""
        log, part = self.name + ".log", self.name + ".part"
        length, generation = self.copy or self.bucket.stat(log)
        was_joined = False
        self.copy = None  # not known until the answers are in
        while length < size:
            piece = self.piece(length, min(CHUNK, size - length))
            if not piece:
                break  # somebody cut it just now: the supervisor makes it as long again
            if generation == 0:
                generation = self.bucket.put(log, piece, ifGenerationMatch=0)
            else:
                added = self.bucket.put(part, piece)
                generation = self.bucket.join(log, generation, part, added)
                was_joined = True
            length += len(piece)
        self.copy = (length, generation)
        if was_joined:
            self.bucket.delete(part)
        return length

    def piece(self, begin: int, length: int) -> bytes:
        """Bytes of the log. Those that somebody cut off are zeros: byte N stays byte N."""
        try:
            return self.log.read(begin, length)
        except Freed as freed:
            return bytes(min(length, freed.first - begin))

    def send_moments(self, *, is_last: bool) -> None:
        if not is_last and time.monotonic() < self.moments_due:
            return
        self.moments_due = time.monotonic() + self.interval * RARELY
        try:
            with open(os.path.join(self.folder, "moments"), "rb") as source:
                moments = source.read()
        except FileNotFoundError:
            return
        if moments != self.moments:
            self.bucket.put(self.name + ".moments", moments)
            self.moments = moments

    def note_trouble(self) -> None:
        """Let nobody wait for what may never arrive."""
        with contextlib.suppress(OSError):  # a full disk may be the trouble
            save(self.folder, "trouble.json", {})

    def forget_trouble(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(self.folder, "trouble.json"))

    def tell_the_others(self, record: dict[str, Any]) -> None:
        """The first worker to fail names itself; whoever comes later finds the name taken."""
        try:
            name = self.prefix + "/end.json"
            self.bucket.put(name, json.dumps(record).encode(), ifGenerationMatch=0)
        except urllib.error.HTTPError as error:
            if error.code != 412:
                raise


def save(folder: str, name: str, value: dict[str, Any]) -> None:
    temporary = os.path.join(folder, f".{name}.{os.getpid()}")
    with open(temporary, "w", encoding="utf-8", opener=private) as target:
        json.dump(value, target)
    os.replace(temporary, os.path.join(folder, name))


def main(arguments: list[str]) -> int:
    (folder,) = arguments
    spec = load(folder, "spec.json")
    assert spec is not None
    # The courier of a supervisor that was killed may be in the middle of a turn.
    lock = os.open(os.path.join(folder, "courier.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    mirror = Mirror(folder, spec)
    mirror.run()
    return 0 if mirror.is_complete else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
