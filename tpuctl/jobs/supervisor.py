"""Runs one attempt of a job on one worker, and outlives whoever started it.

This file is sent to workers as it is, beside `keeper.py`, `courier.py` and `environment.py`, and
runs there as `python3 -S -I supervisor.py COMMAND FOLDER`: standard library only, Python 3.8 and
later. FOLDER holds all that is known of the attempt: `spec.json` (what to run), `log` (all that
the job printed), `record.json` (how it fares), `lock` (held while a supervisor lives), and the
keeper's files.

Two processes watch over a job. The keeper is its parent and does nothing but wait, so that the
exit status is known even when the supervisor is killed; the supervisor prepares, enforces limits
and ends the job. Whoever asks about a job whose supervisor is gone starts a new one, which adopts
the job.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any

__all__ = ["main"]

ENDED = ("succeeded", "failed", "stopped", "timed_out", "lost")
EXIT_LOST, EXIT_STOPPED, EXIT_TIMED_OUT = 69, 143, 124
NO_SUCH_JOB = 3  # exit code of a command for a folder without a job
TICK = 0.25  # seconds between looks at limits and requests
FINAL_COPY = 600.0  # seconds that the courier may take for the last of log and record


class Failure(Exception):
    """The attempt cannot go on; `cause` is one word for the record."""

    def __init__(self, cause: str, detail: str) -> None:
        super().__init__(detail)
        self.cause = cause
        self.detail = detail


class Ended(Exception):
    """The attempt was asked to end while it was still being prepared."""


def now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat()


def tool(name: str, *arguments: str) -> list[str]:
    """The command line of one of the files sent along."""
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
    return [sys.executable, "-S", "-I", beside, *arguments]


class Folder:
    """The attempt's folder: JSON files written whole or not at all, and locks."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)

    def file(self, name: str) -> str:
        return os.path.join(self.path, name)

    def read(self, name: str) -> dict[str, Any] | None:
        try:
            with open(self.file(name), encoding="utf-8") as source:
                value: dict[str, Any] = json.load(source)
                return value
        except FileNotFoundError:
            return None

    def write(self, name: str, value: dict[str, Any]) -> None:
        temporary = self.file(f".{name}.{os.getpid()}")
        with open(temporary, "w", encoding="utf-8", opener=private) as target:
            json.dump(value, target)
            target.flush()
            os.fsync(target.fileno())
        os.replace(temporary, self.file(name))

    def lock(self, name: str, patience: float = 0.0) -> int | None:
        """Take the lock and return its descriptor, or None when another process holds it.

        Patience is for `is_locked` of another process, which holds it for an instant.
        """
        handle = os.open(self.file(name), os.O_RDWR | os.O_CREAT, 0o600)
        deadline = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return handle
            except OSError:
                if time.monotonic() >= deadline:
                    os.close(handle)
                    return None
                time.sleep(0.02)

    def is_locked(self, name: str) -> bool:
        handle = self.lock(name)
        if handle is not None:
            os.close(handle)
        return handle is None

    def say(self, text: str) -> None:
        """Add a line of our own to the job's log."""
        with open(self.file("log"), "ab", opener=private) as log:
            log.write((f"tpuctl: {text}\n").encode())


def private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


# The supervisor -----------------------------------------------------------------------------


class Supervisor:
    """Brings one attempt from its spec to its final record."""

    def __init__(self, folder: Folder, spec: dict[str, Any]) -> None:
        self.folder = folder
        self.spec = spec
        self.record: dict[str, Any] = folder.read("record.json") or {
            "job": spec["job"],
            "attempt": spec["attempt"],
            "worker": spec["worker"],
            "state": "preparing",
            "exit_code": None,
            "signal": None,
            "started": now(),
            "started_uptime": time.monotonic(),  # limits go by it: clocks may be set
            "finished": None,
            "log_bytes": None,
            "first_cause": "",
            "detail": "",
            "synced": None,
        }
        self.keeper: subprocess.Popen[bytes] | None = None
        self.courier: subprocess.Popen[bytes] | None = None
        self.ending: tuple[str, str, str] | None = None  # state, cause, detail
        self.grace = float(spec.get("grace_seconds", 30))
        self.kill_at = 0.0
        self.is_news = False  # the keeper is still to be told to end the job
        self.was_terminated = False
        self.wakeup, wake = os.pipe()
        for end in (self.wakeup, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self.terminate())
        open(folder.file("log"), "ab", opener=private).close()
        self.save()

    def terminate(self) -> None:
        """The machine is being taken down: the job may save, and its end is not its fault."""
        self.is_news = self.was_terminated = True

    def run(self) -> None:
        if self.record["state"] in ENDED:
            return self.deliver()
        try:
            if not (self.folder.read("begun.json") or self.folder.is_locked("job.lock")):
                self.launch(*self.prepare())
            self.save(state="running")
            self.watch()
        except Ended:
            self.conclude({"exit_code": None, "signal": None, "finished": now()})
        except Failure as failure:
            self.folder.say(f"{failure.cause}: {failure.detail}")
            state, code = ("lost", EXIT_LOST) if failure.cause == "lost" else ("failed", 1)
            self.finish(state, code, failure.cause, failure.detail)
        except Exception as error:
            traceback.print_exc()
            self.finish("failed", 1, "supervisor", f"{type(error).__name__}: {error}")

    def save(self, **changes: Any) -> None:
        self.record.update(changes)
        self.folder.write("record.json", self.record)

    def tick(self) -> None:
        """Look at everything that may end the attempt, then sleep a little.

        A signal, or the end of a child, cuts the sleep short.
        """
        if self.ending is None:
            self.ending = self.reason_to_end()
            if self.ending is not None:
                self.kill_at = time.monotonic() + self.grace
                self.is_news = True
        elif time.monotonic() >= self.kill_at:
            self.tell_keeper(signal.SIGUSR1)
        if self.is_news and self.tell_keeper(signal.SIGTERM):
            self.is_news = False
        if self.spec.get("bucket") and (self.courier is None or self.courier.poll() is not None):
            self.courier = subprocess.Popen(tool("courier.py", "mirror", self.folder.path))
        select.select([self.wakeup], [], [], TICK)
        with contextlib.suppress(BlockingIOError):
            os.read(self.wakeup, 512)

    def reason_to_end(self) -> tuple[str, str, str] | None:
        stop = self.folder.read("stop.json")
        if stop is not None:
            self.grace = float(stop["grace"])
            return ended_by(stop.get("worker"))
        limit = self.spec.get("max_seconds")
        if limit and time.monotonic() - self.record["started_uptime"] >= limit:
            return ("timed_out", "max_hours", f"ran for {limit / 3600:.6g} hours")
        end = self.folder.read("end.json")
        if end is not None and end.get("worker") != self.spec["worker"]:
            return ended_by(end.get("worker"))
        return None

    def tell_keeper(self, number: int) -> bool:
        """Signal the keeper; False when there is none, or none yet."""
        begun = self.folder.read("begun.json")
        if begun is None or begun["keeper"] is None or not self.folder.is_locked("job.lock"):
            return False
        os.kill(begun["keeper"], number)
        return True

    def interrupt(self) -> None:
        """A tick of the preparation, which has nothing to save."""
        self.tick()
        if self.ending is not None:
            raise Ended
        if self.was_terminated:
            raise Failure("terminated", "the machine was taken down")

    def prepare(self) -> tuple[list[str], str, dict[str, str]]:
        """Fetch and unpack the bundle, make the environment: what to run, where, with what."""
        environment = dict(os.environ, PYTHONUNBUFFERED="1", **self.spec.get("env", {}))
        code = self.folder.file("code")
        if self.spec.get("bundle"):
            self.step("bundle", tool("courier.py", "fetch", self.folder.path))
        else:
            os.makedirs(code, exist_ok=True)
        python = shutil.which(self.spec.get("python", "python3")) or sys.executable
        requirements = os.path.join(code, self.spec.get("requirements") or "")
        if os.path.isfile(requirements):
            made = tool("environment.py", "make", self.folder.path, requirements, python)
            self.step("requirements", made)
            result = self.folder.read("environment.json")
            assert result is not None
            programs = os.path.join(result["home"], "bin")
            python = os.path.join(programs, "python")
            environment["VIRTUAL_ENV"] = result["home"]
            environment["PATH"] = programs + os.pathsep + environment.get("PATH", os.defpath)
        argv = [python if part == "{python}" else part for part in self.spec["argv"]]
        return argv, os.path.join(code, self.spec.get("cwd", "")), environment

    def step(self, cause: str, argv: Sequence[str]) -> None:
        """Run a command of the preparation; its last line says why it failed."""
        with open(self.folder.file("step.log"), "w+b", opener=private) as output:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                while child.poll() is None:
                    self.interrupt()
            finally:
                if child.poll() is None:
                    os.killpg(child.pid, signal.SIGKILL)
                    child.wait()
            if child.returncode:
                output.seek(0)
                lines = output.read().decode(errors="replace").strip().splitlines()
                raise Failure(cause, lines[-1] if lines else f"exit code {child.returncode}")

    def launch(self, argv: list[str], cwd: str, environment: dict[str, str]) -> None:
        keeper = tool("keeper.py", self.folder.path, cwd, *argv)
        self.keeper = subprocess.Popen(keeper, env=environment, start_new_session=True)

    def watch(self) -> None:
        while True:
            is_alive = self.keeper is not None and self.keeper.poll() is None
            is_alive = is_alive or self.folder.is_locked("job.lock")
            exited = self.folder.read("exit.json")
            if exited is not None:
                return self.conclude(exited)
            if not is_alive:
                raise Failure("lost", "the job vanished: the machine restarted, or memory ran out")
            self.tick()

    def conclude(self, exited: dict[str, Any]) -> None:
        code, number = exited["exit_code"], exited["signal"]
        self.record.update(signal=number, finished=exited["finished"])
        if number:
            code = 128 + number
        if self.ending is not None:
            state, cause, detail = self.ending
            code = EXIT_TIMED_OUT if state == "timed_out" else EXIT_STOPPED
            self.finish(state, code, cause, detail)
        elif code == 0:
            self.finish("succeeded", 0, "", "")
        elif self.was_terminated:
            self.finish("failed", code, "terminated", "the machine was taken down")
        elif number:
            name = signal.Signals(number).name
            self.finish("failed", code, "signal", f"the script was ended by {name}")
        else:
            self.finish("failed", code, "script", f"the script ended with exit code {code}")

    def finish(self, state: str, code: int, cause: str, detail: str) -> None:
        self.save(
            state=state,
            exit_code=code,
            first_cause=cause,
            detail=detail,
            finished=self.record["finished"] or now(),
            log_bytes=os.path.getsize(self.folder.file("log")),
        )
        self.deliver()

    def deliver(self) -> None:
        """See the final log and record into the bucket, then say whether they are there."""
        deadline = time.monotonic() + FINAL_COPY
        synced = False
        while self.spec.get("bucket") and not synced and time.monotonic() < deadline:
            self.tick()
            synced = self.courier is not None and self.courier.poll() == 0
        if self.courier is not None and self.courier.poll() is None:
            self.courier.kill()
        self.save(synced=synced)


def ended_by(worker: int | None) -> tuple[str, str, str]:
    """The reason to end when someone asked for it, or another worker ended."""
    if worker is None:
        return ("stopped", "stopped", "stopped on request")
    return ("stopped", "worker", f"worker {worker} ended first")


# Commands -----------------------------------------------------------------------------------


def ensure(folder: Folder) -> dict[str, Any]:
    """See to it that a supervisor lives unless the attempt has ended; the record if there is one.

    Returns once the supervisor holds its lock. Two never run at the same time.
    """
    spec = folder.read("spec.json")
    if spec is None:
        print(f"no job in {folder.path}", file=sys.stderr)
        sys.exit(NO_SUCH_JOB)
    record = folder.read("record.json")
    is_over = record is not None and record["state"] in ENDED and record["synced"] is not None
    if not is_over and not folder.is_locked("lock"):
        daemonise(folder, spec)
        record = folder.read("record.json")
    deadline = time.monotonic() + 5.0
    while record is None and time.monotonic() < deadline:  # another supervisor is starting
        time.sleep(0.02)
        record = folder.read("record.json")
    if record is None:
        sys.exit("the supervisor did not start: see {}".format(folder.file("supervisor.log")))
    return record


def daemonise(folder: Folder, spec: dict[str, Any]) -> None:
    """Start a supervisor that belongs to no session, and wait until it has written its record."""
    ready, tell = os.pipe()
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
            if folder.lock("lock", patience=0.5) is not None:
                supervisor = Supervisor(folder, spec)
                os.close(tell)
                supervisor.run()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(0)
    os.close(tell)
    os.wait()
    os.read(ready, 1)  # ends when the supervisor closes it


def tail(folder: Folder, offset: int, follow: bool) -> None:
    """Write the log from a byte on; at the end of a finished job, its record to stderr.

    The record comes only after every byte, and after the bucket has them too unless that takes
    longer than a few seconds.
    """
    record = ensure(folder)
    reader_left = select.poll()
    reader_left.register(1, 0)  # POLLERR and POLLHUP are always reported
    patience = 10.0
    looked = time.monotonic()
    delay = 0.01
    with open(folder.file("log"), "rb") as log:
        log.seek(offset)
        while True:
            has_ended = record["state"] in ENDED
            moved = False
            for piece in iter(lambda: log.read(1 << 18), b""):
                moved = True
                written = 0
                while written < len(piece):
                    written += os.write(1, piece[written:])
            if not follow or (has_ended and (record["synced"] is not None or patience <= 0)):
                break
            if reader_left.poll(delay * 1000):
                return
            patience -= delay if has_ended else 0.0
            delay = 0.01 if moved else min(delay * 1.5, 0.05)
            if has_ended or (not moved and time.monotonic() - looked >= 0.2):
                looked = time.monotonic()
                record = ensure(folder)
    print(json.dumps(record), file=sys.stderr)


def stop(folder: Folder, grace: float, worker: int | None) -> dict[str, Any]:
    """End the job: SIGTERM, grace, SIGKILL, the whole tree. Returns once it has ended."""
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
    for name in ("start", "status", "tail", "stop"):
        command = commands.add_parser(name)
        command.add_argument("folder")
        if name == "tail":
            command.add_argument("--offset", type=int, default=0)
            command.add_argument("--follow", action="store_true")
        elif name == "stop":
            command.add_argument("--grace", type=float, default=30.0)
            command.add_argument("--worker", type=int, help="the one whose end is the reason")
    given = parser.parse_args()
    folder = Folder(given.folder)
    if given.command == "tail":
        tail(folder, given.offset, given.follow)
    elif given.command == "stop":
        print(json.dumps(stop(folder, given.grace, given.worker)))
    else:
        print(json.dumps(ensure(folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
