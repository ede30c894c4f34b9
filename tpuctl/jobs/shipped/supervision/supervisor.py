"""Runs one attempt of a job on one worker, and outlives the connection that started it.

This file is sent to workers with the others of `launch.SHIPPED`, and runs there as
`python3 -S -I supervisor.py COMMAND FOLDER`: standard library only, Python 3.8 and later. FOLDER
contains the attempt's files: `spec.json` (what to run), `log` (the job's output), `record.json`
(its state), `lock` (held while a supervisor runs), and those of the job parent.

Two processes manage a job. The job parent only starts it and waits for it, so that the exit status
is known even if the supervisor is killed; the supervisor prepares the job, enforces its limits and
ends it. Any command for a job without a supervisor starts a new one, which adopts the job.
"""

from __future__ import annotations

import getopt
import importlib
import json
import os
import sys
import time

# The other shipped files are in this folder, as is the job's code: search it after the standard
# library.
sys.path.append(os.path.dirname(os.path.abspath(__file__)))
TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from tpuctl.jobs.shipped.logs.tail import UPLOAD_WAIT, locate, tail
    from tpuctl.jobs.shipped.machine.folder import ENDED, Folder
    from tpuctl.jobs.shipped.supervision.arrival import accept_upload
else:
    from arrival import accept_upload
    from folder import ENDED, Folder
    from tail import UPLOAD_WAIT, locate, tail

START_SIGNAL = "start"  # a file; only its existence counts
NO_SUCH_JOB = 3  # exit code of a command for a folder without a job


def ensure(folder: Folder) -> dict[str, Any]:
    """Ensure that a supervisor runs unless the attempt has ended, and return the record.

    Returns once the supervisor holds its lock. Two never run at the same time.
    """
    spec = folder.read("spec.json")
    if spec is None:
        print(f"no job in {folder.path}", file=sys.stderr)
        sys.exit(NO_SUCH_JOB)
    record = folder.read("record.json")
    could_start = True
    if not is_over(record) and not folder.is_locked("lock"):
        could_start = daemonize(folder, spec)
        record = folder.read("record.json")
    deadline = time.monotonic() + 30.0
    # Another supervisor may be starting; one that failed to start holds no lock.
    while record is None and folder.is_locked("lock") and time.monotonic() < deadline:
        time.sleep(0.02)
        record = folder.read("record.json")
    # One that failed to start is reported: no retry would help, and clients wait for the job.
    is_supervised = could_start or is_over(record) or folder.is_locked("lock")
    if record is None or not is_supervised:
        reason = "the machine's disk is full; " if folder.is_full() else ""
        where = folder.file("supervisor.log")
        sys.exit(f"the supervisor did not start: {reason}see {where}")
    return record


def is_over(record: dict[str, Any] | None) -> bool:
    return record is not None and record["state"] in ENDED and record["log_uploaded"] is not None


def daemonize(folder: Folder, spec: dict[str, Any]) -> bool:
    """Start a supervisor in its own session; returns whether it has written its record."""
    ready, notify = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        try:
            os.close(ready)
            quiet = os.open(os.devnull, os.O_RDONLY)
            out = os.open(
                folder.file("supervisor.log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600
            )
            for target, source in ((0, quiet), (1, out), (2, out)):
                os.dup2(source, target)
            if folder.lock("lock", timeout=0.5) is not None:
                # Imported here, since no other command needs it.
                attempt = importlib.import_module("attempt").Attempt(folder, spec)
                os.write(notify, b"1")
                os.close(notify)
                attempt.run()
        except BaseException:
            import traceback  # it takes a while to load

            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(0)
    os.close(notify)
    os.wait()
    has_started = os.read(ready, 1) == b"1"  # empty if it exited
    os.close(ready)
    return has_started


def wait(
    folder: Folder, is_done: Callable[[dict[str, Any]], bool], timeout: float, longest_delay: float
) -> dict[str, Any]:
    """Return the record once it is as wanted, or after a timeout; the job is supervised."""
    deadline = time.monotonic() + timeout
    delay = 0.02
    record = ensure(folder)
    while not is_done(record) and time.monotonic() < deadline:
        time.sleep(delay)
        delay = min(delay * 1.3, longest_delay)
        record = ensure(folder)
    return record


def start(folder: Folder, until: str, timeout: float) -> dict[str, Any]:
    """Return the record once the job has reached a state, or after a timeout."""
    earlier_states = ("preparing",) if until == "ready" else ("preparing", "ready")
    return wait(folder, lambda record: record["state"] not in earlier_states, timeout, 0.25)


def proceed(folder: Folder) -> int:
    """After `start`: receive the start signal and follow the log, as the lines of stdin request.

    They are `start`, which is answered by a line, and the offset at which to begin. If stdin ends,
    the client is not interested.
    """
    for line in iter(sys.stdin.readline, ""):
        if line.strip() != START_SIGNAL:
            return tail(folder, int(line), True, lambda: ensure(folder))
        with open(folder.file(START_SIGNAL), "a", encoding="utf-8"):
            print("started", flush=True)
    return 0


def stop(folder: Folder, request: dict[str, Any]) -> dict[str, Any]:
    """Stop all the job's processes: SIGTERM, grace, SIGKILL.

    Returns once it has ended and the bucket has its record, or does not get it for some seconds.
    """
    if (folder.read("record.json") or {}).get("state") not in ENDED and folder.read("spec.json"):
        folder.write("stop.json", request)
    record = wait(folder, lambda record: record["state"] in ENDED, request["grace"] + 15, 0.05)
    return wait(folder, is_over, UPLOAD_WAIT, 0.05) if record["state"] in ENDED else record


OPTIONS = {
    # A folder; "ready" or "running"; seconds to wait; and whether `proceed` follows.
    "start": ("upload=", "until=", "timeout=", "continue"),
    "status": (),
    "tail": ("offset=", "follow"),
    "locate": ("lines=", "since="),  # number of last lines; seconds since the epoch
    # Seconds; the worker that failed first, or the limit that is reached, and in which words.
    "stop": ("grace=", "worker=", "limit=", "detail="),
}


def main(arguments: list[str]) -> int:
    try:
        command, path = arguments[:2]
        pairs, rest = getopt.getopt(arguments[2:], "", OPTIONS[command])
        if rest:
            raise ValueError(rest)
    except (ValueError, LookupError, getopt.GetoptError):
        print(f"usage: supervisor.py {'|'.join(OPTIONS)} FOLDER [OPTION...]", file=sys.stderr)
        return 2
    folder, options = Folder(path), dict(pairs)
    if command == "tail":
        offset = int(options.get("--offset", 0))
        return tail(folder, offset, "--follow" in options, lambda: ensure(folder))
    if command == "locate":
        ensure(folder)
        lines = int(options["--lines"]) if "--lines" in options else None
        since = float(options["--since"]) if "--since" in options else None
        answer: Any = locate(folder, lines, since)
    elif command == "stop":
        worker = int(options["--worker"]) if "--worker" in options else None
        request: dict[str, Any] = {"grace": float(options.get("--grace", 30.0)), "worker": worker}
        if "--limit" in options:
            request.update(limit=options["--limit"], detail=options.get("--detail", ""))
        answer = stop(folder, request)
    elif command == "start":
        if "--upload" in options:
            if not accept_upload(options["--upload"], folder.path):
                sys.exit("the connection dropped while the job was being uploaded")
            sys.path.append(folder.path)  # where the other programs are now
        until = options.get("--until", "running")
        answer = start(folder, until, float(options.get("--timeout", 0.0)))
    else:
        answer = ensure(folder)
    print(json.dumps(answer), flush=True)
    return proceed(folder) if "--continue" in options else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
