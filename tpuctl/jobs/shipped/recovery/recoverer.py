"""Runs tpuctl on a stack's controller, unattended: `tpuctl wait` until a job has ended, or
`tpuctl jobs run` until the stack's queue is empty.

This file is sent to controllers with `folder.py`, as it is, and runs there as
`python3 -S -I recoverer.py COMMAND FOLDER`: standard library only, Python 3.8 and later. FOLDER,
`~/.tpuctl/recover/JOB`, or `…/queue`, holds

    command.json   what to run: `argv` and `env`, whose values may be secret; `until` it exits with
                   "success", otherwise until it reports the job's end; `order` tells one command
                   from the next in the same folder
    lock           held by this program, or by the tpuctl that it started
    state.json     its state
    log            that tpuctl's events, one per line
    result.json    how the job, or the order, ended: nothing is started afterwards

`start` ensures that it runs, unless the job has ended, and prints its state. `key` prints the
public SSH key of this machine's tpuctl, and creates it if missing; FOLDER is then that tpuctl's
configuration folder.

It outlives the connection that started it. If it is killed, or the machine restarts, the machine's
watchdog restarts it; the tpuctl that it started keeps running and holds the lock.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

# The other shipped files are in this folder: search it after the standard library.
sys.path.append(os.path.dirname(os.path.abspath(__file__)))
if TYPE_CHECKING:
    from tpuctl.jobs.shipped.machine.folder import Folder, private
else:
    from folder import Folder, private

TICK = 2.0  # seconds between heartbeats
PAUSE, MAX_PAUSE = 1.0, 300.0  # seconds before tpuctl is restarted: doubled each time
STABLE_SECONDS = 30.0  # a tpuctl that fails later resets the backoff
MAX_LOG_BYTES = 1 << 20  # bytes, of which the last half is kept
ACTIVE = "~/.tpuctl/watchdog/active"  # its modification time counts as activity


class Recoverer:
    """Runs tpuctl until it reports how the job ended."""

    def __init__(self, folder: Folder, command: dict[str, Any], lock: int) -> None:
        self.folder = folder
        self.command = command
        self.lock = lock
        self.state: dict[str, Any] = {"pid": os.getpid(), "job": command["job"], "starts": 0}
        self.child: subprocess.Popen[bytes] | None = None
        self.is_stopped = False
        signal.signal(signal.SIGTERM, lambda *_: self.stop())
        self.save()

    def save(self, **changes: Any) -> None:
        self.state.update(changes)
        self.folder.write("state.json", self.state)

    def stop(self) -> None:
        self.is_stopped = True
        if self.child is not None and self.child.poll() is None:
            self.child.terminate()

    def run(self) -> None:
        pause = PAUSE
        while not self.is_stopped:
            began = time.monotonic()
            ended = self.try_once()
            if ended is not None and self.finish(ended):
                return
            if time.monotonic() - began >= STABLE_SECONDS:
                pause = PAUSE
            deadline = time.monotonic() + pause
            while time.monotonic() < deadline and not self.is_stopped:
                time.sleep(min(TICK, pause))
            pause = min(pause * 2, MAX_PAUSE)

    def finish(self, ended: dict[str, Any]) -> bool:
        """Save how it ended; False if the folder has another order meanwhile, which is next."""
        self.folder.write("result.json", ended)
        if self.command.get("until") != "success":
            delete_secrets(self.folder)
            return True
        self.command = self.folder.read("command.json") or self.command
        return has_ended(self.folder, self.command)

    def try_once(self) -> dict[str, Any] | None:
        """Run tpuctl; returns the job's end, or None if it did not report one."""
        truncate_log(self.folder.file("log"))
        with open(self.folder.file("log"), "ab", opener=private) as log:
            began = log.seek(0, os.SEEK_END)
            self.child = subprocess.Popen(
                self.command["argv"],
                cwd=self.folder.path,
                env=dict(os.environ, **self.command["env"]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[self.lock],  # while it runs, no other is started
            )
        self.save(starts=self.state["starts"] + 1, child=self.child.pid)
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self.child.wait(TICK)
                break
            touch_activity()
        self.save(child=None, exit_code=code)
        if self.command.get("until") == "success":
            return {"exit_code": 0, "order": self.command["order"]} if code == 0 else None
        with open(self.folder.file("log"), "rb") as log_file:
            log_file.seek(began)
            return find_end(log_file, code)


def find_end(events: Iterable[bytes], code: int) -> dict[str, Any] | None:
    """The end of the job among tpuctl's events; None if it exited without one."""
    ended = None
    for line in events:
        if b'"JobEnded"' in line:
            with contextlib.suppress(ValueError):
                ended = dict(json.loads(line))
    # With another exit code, something unrelated to the job failed.
    return ended if ended is not None and ended.get("exit_code") == code else None


def has_ended(folder: Folder, command: dict[str, Any] | None) -> bool:
    """Whether the job, or this order, has ended."""
    result = folder.read("result.json")
    order = (command or {}).get("order")
    return result is not None and result.get("order") == order


def delete_secrets(folder: Folder) -> None:
    for name in ("command.json", "tpuctl.yaml"):
        with contextlib.suppress(FileNotFoundError):
            os.remove(folder.file(name))


def touch_activity() -> None:
    """Report activity to the machine's watchdog."""
    path = os.path.expanduser(ACTIVE)
    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "a", encoding="utf-8"):
            os.utime(path)


def truncate_log(log: str) -> None:
    """Truncate a long log, so that it does not fill the disk."""
    with contextlib.suppress(FileNotFoundError):
        if os.path.getsize(log) > MAX_LOG_BYTES:
            with open(log, "rb") as source:
                source.seek(-MAX_LOG_BYTES // 2, os.SEEK_END)
                tail = source.read().partition(b"\n")[2]
            with open(log + ".part", "wb", opener=private) as target:
                target.write(tail)
            os.replace(log + ".part", log)


# Commands -----------------------------------------------------------------------------------


def start(folder: Folder) -> dict[str, Any]:
    """Ensure that one runs, and return its state. Two never run at the same time."""
    command = folder.read("command.json")
    is_over = has_ended(folder, command)
    if is_over and (command or {}).get("until") != "success":
        delete_secrets(folder)  # a retried upload may have restored the files
    if is_over or command is None:
        return {"result": folder.read("result.json")}
    daemonize(folder, command)
    return folder.read("state.json") or {}


def daemonize(folder: Folder, command: dict[str, Any]) -> None:
    """Start one in its own session, and wait until it runs or finds another one running."""
    ready, notify = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        try:
            os.close(ready)
            out = os.open(folder.file("log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            for target, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, out), (2, out)):
                os.dup2(source, target)
            lock = folder.lock("lock", timeout=0.5)
            if lock is not None:
                recoverer = Recoverer(folder, command, lock)
                os.close(notify)
                recoverer.run()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(0)
    os.close(notify)
    os.wait()
    os.read(ready, 1)  # returns when the other process closes it
    os.close(ready)


def key(folder: str) -> str:
    """The public SSH key of this machine's tpuctl, created if missing."""
    path = os.path.join(folder, "ssh", "id_ed25519")
    if not os.path.exists(path):
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        temporary = f"{path}.{os.getpid()}"
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", temporary]
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=2, check=True)
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)  # unlike a rename, fails if another process was first
        for name in (temporary, temporary + ".pub"):
            os.remove(name)
    show = ["ssh-keygen", "-y", "-f", path]
    return subprocess.check_output(show, stdin=subprocess.DEVNULL).decode().strip()


def main(arguments: list[str]) -> int:
    if len(arguments) != 2 or arguments[0] not in ("start", "key"):
        print("usage: recoverer.py start|key FOLDER", file=sys.stderr)
        return 2
    command, path = arguments[0], os.path.abspath(arguments[1])
    print(json.dumps(start(Folder(path)) if command == "start" else {"key": key(path)}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
