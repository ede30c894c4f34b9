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

import argparse
import importlib
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

# The other shipped files are in this folder, as is the job's code: search it after the standard
# library.
sys.path.append(os.path.dirname(os.path.abspath(__file__)))
if TYPE_CHECKING:
    from tpuctl.jobs.shipped.folder import ENDED, Folder
    from tpuctl.jobs.shipped.tail import locate, tail
else:
    from folder import ENDED, Folder
    from tail import locate, tail

__all__ = ["main"]

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


def start(folder: Folder, until: str, timeout: float) -> dict[str, Any]:
    """Return the record once the job has reached a state, or after a timeout."""
    earlier_states = ("preparing",) if until == "ready" else ("preparing", "ready")
    deadline = time.monotonic() + timeout
    delay = 0.02
    record = ensure(folder)
    while record["state"] in earlier_states and time.monotonic() < deadline:
        time.sleep(delay)
        delay = min(delay * 1.3, 0.25)
        record = ensure(folder)
    return record


def stop(folder: Folder, grace: float, worker: int | None) -> dict[str, Any]:
    """Stop all the job's processes: SIGTERM, grace, SIGKILL. Returns once it has ended."""
    if (folder.read("record.json") or {}).get("state") not in ENDED and folder.read("spec.json"):
        folder.write("stop.json", {"grace": grace, "worker": worker})
    deadline = time.monotonic() + grace + 15
    record = ensure(folder)
    while record["state"] not in ENDED and time.monotonic() < deadline:
        time.sleep(0.05)
        record = ensure(folder)
    return record


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs a job on a worker.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("start", "status", "tail", "locate", "stop"):
        command = commands.add_parser(name)
        command.add_argument("folder")
        if name == "tail":
            command.add_argument("--offset", type=int, default=0)
            command.add_argument("--follow", action="store_true")
        elif name == "start":
            command.add_argument("--until", choices=("ready", "running"), default="running")
            command.add_argument("--timeout", type=float, default=0.0, help="seconds to wait")
        elif name == "locate":
            command.add_argument("--lines", type=int, help="number of last lines")
            command.add_argument("--since", type=float, help="seconds since the epoch")
        elif name == "stop":
            command.add_argument("--grace", type=float, default=30.0)
            command.add_argument("--worker", type=int, help="worker that failed first")
    arguments = parser.parse_args()
    folder = Folder(arguments.folder)
    if arguments.command == "tail":
        return tail(folder, arguments.offset, arguments.follow, lambda: ensure(folder))
    if arguments.command == "locate":
        ensure(folder)
        print(json.dumps(locate(folder, arguments.lines, arguments.since)))
    elif arguments.command == "stop":
        print(json.dumps(stop(folder, arguments.grace, arguments.worker)))
    elif arguments.command == "start":
        print(json.dumps(start(folder, arguments.until, arguments.timeout)))
    else:
        print(json.dumps(ensure(folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
