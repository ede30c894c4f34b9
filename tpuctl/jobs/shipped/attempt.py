"""One attempt of a job on one worker, from its spec to its final record.

Like `supervisor.py`, whose work this is, this file is sent to workers as it is: standard library
only, Python 3.8 and later.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any

# What is sent along lies beside this file, and after the standard library: the job's own code is
# in that folder too.
sys.path.append(os.path.dirname(os.path.abspath(__file__)))
if TYPE_CHECKING:
    from tpuctl.jobs.shipped.accelerator import is_there
    from tpuctl.jobs.shipped.clock import Stopwatch, now
    from tpuctl.jobs.shipped.folder import ENDED, Folder, private
    from tpuctl.jobs.shipped.logfile import Log
    from tpuctl.jobs.shipped.preparation import (
        Command,
        Failure,
        forget_secrets,
        prepare,
        step,
        tool,
    )
    from tpuctl.jobs.shipped.processes import FOLDER, end, of_attempt
else:
    from accelerator import is_there
    from clock import Stopwatch, now
    from folder import ENDED, Folder, private
    from logfile import Log
    from preparation import Command, Failure, forget_secrets, prepare, step, tool
    from processes import FOLDER, end, of_attempt

__all__ = ["Attempt"]

NOTE = "TPUCTL_MACHINE_NOTE"  # how a machine of the local cloud is not what was asked for
EXIT_LOST, EXIT_STOPPED, EXIT_TIMED_OUT = 69, 143, 124
TICK = 0.25  # seconds between looks at limits and requests
SETTLING = 5.0  # seconds in which a short job is over: then all of it is sent at once
LEFTOVERS = 5.0  # seconds between SIGTERM and SIGKILL for what a vanished job left running
ASKED_TOGETHER = 2.0  # seconds in which a machine that goes down asks all processes to end
FINAL_COPY = 600.0  # seconds that the courier may take for the last of log and record
PAUSE, LONGEST_PAUSE = 1.0, 32.0  # seconds before a script is started again: they double
REFUSAL_WITHIN = 1 << 16  # bytes at the end of a script's output: what it ended with


class Ended(Exception):
    """The attempt was asked to end while it was still being prepared."""


class Attempt:
    """Brings one attempt from its spec to its final record."""

    def __init__(self, folder: Folder, spec: dict[str, Any]) -> None:
        self.folder = folder
        self.spec = spec
        found = folder.read("record.json")
        self.record: dict[str, Any] = found or {
            "job": spec["job"],
            "attempt": spec["attempt"],
            "worker": spec["worker"],
            "state": "preparing",
            "exit_code": None,
            "signal": None,
            "restarts": 0,
            "started": now(),
            "finished": None,
            "log_bytes": None,
            "first_cause": "",
            "detail": "",
            "synced": None,
        }
        self.lasted = Stopwatch(self.record["started"], self.record.get("clock"))
        self.record["clock"] = self.lasted.state
        self.keeper: subprocess.Popen[bytes] | None = None
        self.courier: subprocess.Popen[bytes] | None = None
        self.ending: tuple[str, str, str] | None = None  # state, cause, detail
        self.grace = float(spec.get("grace_seconds", 30))
        self.kill_at = 0.0
        self.is_news = False  # the keeper is still to be told to end the job,
        self.tell_at = 0.0  # from then on
        self.was_terminated = False
        self.wakeup, wake = os.pipe()
        for end in (self.wakeup, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self.terminate())
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # comes with it where a session ends
        open(folder.file("log"), "ab", opener=private).close()
        self.log = Log(folder)
        if found is None:
            folder.set_aside()
            if os.environ.get(NOTE):
                folder.say(f"this machine has {os.environ[NOTE]}")
        self.save()

    def terminate(self) -> None:
        """The machine is being taken down: the job may save, and its end is not its fault.

        It is told a little later, when the keeper knows whether the machine has told all.
        """
        exited = self.folder.read("exit.json")
        if exited is None or exited["signal"] == signal.SIGTERM:  # else it came to its own end
            self.is_news = self.was_terminated = True
            self.tell_at = time.monotonic() + TICK

    def run(self) -> None:
        if self.record["state"] in ENDED:
            return self.deliver()
        try:
            while True:
                if self.is_to_launch():
                    command = prepare(self.folder, self.spec, self.interrupt)
                    self.free_accelerator()
                    self.await_others()
                    self.launch(command)
                self.save(state="running")
                exited = self.watch()
                pause = self.pause_before_another(exited)
                if pause is None:
                    return self.conclude(exited)
                self.await_another(pause)
        except Ended:
            self.conclude({"exit_code": None, "signal": None, "finished": now()})
        except Failure as failure:
            self.folder.say(f"{failure.cause}: {failure.detail}")
            state, code = ("failed", 1)
            if failure.cause == "lost":
                state, code = ("lost", EXIT_LOST)
                end(lambda: of_attempt(self.folder.path), LEFTOVERS)
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
        self.log.look()
        if self.ending is None:
            self.ending = self.reason_to_end()
            if self.ending is not None:
                self.kill_at = time.monotonic() + self.grace
                self.is_news, self.tell_at = True, 0.0
        elif time.monotonic() >= self.kill_at:
            self.tell_keeper(signal.SIGUSR1)
        if self.is_news and time.monotonic() >= self.tell_at:
            self.is_news = not self.tell_keeper(signal.SIGUSR2)
        if self.has_to_send() and (self.courier is None or self.courier.poll() is not None):
            self.courier = subprocess.Popen(tool("uploader.py", self.folder.path))
        select.select([self.wakeup], [], [], TICK)
        with contextlib.suppress(BlockingIOError):
            os.read(self.wakeup, 512)

    def has_to_send(self) -> bool:
        """Whether there is work for a courier, which costs more than many a short job."""
        has_time = self.lasted.seconds() < SETTLING and self.record["state"] not in ENDED
        return bool(self.spec.get("bucket")) and not has_time

    def reason_to_end(self) -> tuple[str, str, str] | None:
        stop = self.folder.read("stop.json")
        if stop is not None:
            self.grace = float(stop["grace"])
            return ended_by(stop.get("worker"))
        limit = self.spec.get("max_seconds")
        if limit and self.lasted.seconds() >= limit:
            cause = self.spec.get("limit") or "max_hours"
            return ("timed_out", cause, f"ran for {limit / 3600:.6g} hours")
        end = self.folder.read("end.json")
        if end is not None and end.get("worker") != self.spec["worker"]:
            return ended_by(end.get("worker"))
        return None

    def tell_keeper(self, number: int) -> bool:
        """Signal the keeper; False when there is none, or none yet."""
        begun = self.folder.read("begun.json")
        if begun is None or not begun.get("keeper") or not self.folder.is_locked("job.lock"):
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

    def free_accelerator(self) -> None:
        """See to it that the script finds the chips free, where there are any."""
        if is_there(self.spec):
            freeing = tool("accelerator.py", self.folder.path)
            step(self.folder, self.interrupt, "accelerator", freeing, os.environ)

    def await_others(self) -> None:
        """Wait for the sign to start, where several workers are to start together.

        It is given over SSH, or in the bucket, once all of them are ready.
        """
        together = self.spec.get("together")
        if not together:
            return
        if "ready" not in self.record:
            self.record["ready"] = self.lasted.seconds()
        self.save(state="ready")
        while not os.path.exists(self.folder.file("go")):
            if self.lasted.seconds() - self.record["ready"] >= together["seconds"]:
                missing = (self.folder.read("missing.json") or {}).get("workers")
                who = "worker " + ", ".join(map(str, missing)) if missing else "another worker"
                minutes = f"{together['seconds'] / 60:.3g} minutes"
                raise Failure("slice", f"{who} was not ready to start within {minutes}")
            self.interrupt()

    def is_to_launch(self) -> bool:
        """Whether the script is still to be started, or to be started again."""
        begun = self.folder.read("begun.json")
        if begun is None:
            return not self.folder.is_locked("job.lock")
        return "keeper" not in begun

    def launch(self, command: Command) -> None:
        keeper = tool("job_parent.py", self.folder.path, command.cwd, *command.argv)
        environment = {**command.environment, FOLDER: self.folder.path}
        self.keeper = subprocess.Popen(keeper, env=environment, start_new_session=True)

    def watch(self) -> dict[str, Any]:
        """Wait for the script; how it ended."""
        while True:
            is_alive = self.keeper is not None and self.keeper.poll() is None
            is_alive = is_alive or self.folder.is_locked("job.lock")
            exited = self.folder.read("exit.json")
            if exited is not None:
                return exited
            if not is_alive and self.was_terminated:
                raise Failure("terminated", "the machine was taken down")
            if not is_alive:
                raise Failure("lost", "the job vanished: the machine restarted, or memory ran out")
            self.tick()

    def pause_before_another(self, exited: dict[str, Any]) -> float | None:
        """Seconds until the script is to be started again; None where its end is its own.

        A TPU node reads and writes gs:// as an account of Google's, for which nobody can ask
        whether it is let in yet. So its refusal, for some minutes after it was, says to wait. The
        words are Cloud Storage's, as TensorFlow prints them (googlecolab/colabtools issue 1177;
        google-research/text-to-text-transfer-transformer issue 1003).
        """
        access = self.spec.get("first_access")
        if not access or not exited["exit_code"] or self.ending or self.was_terminated:
            return None
        left: float = access["seconds"] - self.lasted.seconds()
        with open(self.folder.file("log"), "rb") as log:
            log.seek(max(exited["log"], log.seek(0, os.SEEK_END) - REFUSAL_WITHIN))
            account = rb"(?<![\w.-])" + re.escape(access["account"].encode())
            refusal = re.search(account + rb" does not have storage\.[\w.]+ access", log.read())
        if refusal is None or left <= 0:
            return None
        pause: float = access.get("pause", PAUSE) * 2 ** self.record["restarts"]
        return min(pause, LONGEST_PAUSE, left)

    def await_another(self, pause: float) -> None:
        """Leave nothing of a start behind but its log, and wait."""
        number = self.record["restarts"] + 1
        if self.spec.get("bundle"):  # a fresh copy is unpacked, as for the first start
            used = self.folder.file(f"code.{number}")
            with contextlib.suppress(FileNotFoundError):
                os.rename(self.folder.file("code"), used)
            shutil.rmtree(used, ignore_errors=True)
        self.save(restarts=number)
        self.folder.say(
            f"the TPU's account is not let in yet: starting the script again in {pause:.2g} s"
        )
        # In one stroke: a supervisor that takes over from here on starts the script again too.
        os.replace(self.folder.file("exit.json"), self.folder.file("begun.json"))
        until = time.monotonic() + pause
        while time.monotonic() < until:
            self.interrupt()

    def conclude(self, exited: dict[str, Any]) -> None:
        code, number = exited["exit_code"], exited["signal"]
        until = time.monotonic() + ASKED_TOGETHER
        while number == signal.SIGTERM and time.monotonic() < until:
            if self.was_terminated or self.ending is not None:
                break
            self.tick()
        self.record.update(signal=number, finished=self.lasted.ended(exited["finished"]))
        if number:
            code = 128 + number
        if self.ending is not None:
            state, cause, detail = self.ending
            code = EXIT_TIMED_OUT if state == "timed_out" else EXIT_STOPPED
            self.finish(state, code, cause, detail)
        elif self.was_terminated:  # a script that saves and ends well then has not done its work
            self.finish("failed", code or EXIT_STOPPED, "terminated", "the machine was taken down")
        elif code == 0:
            self.finish("succeeded", 0, "", "")
        elif number:
            name = signal.Signals(number).name
            self.finish("failed", code, "signal", f"the script was ended by {name}")
        else:
            full = "; the machine's disk is full" if self.folder.is_full() else ""
            self.finish("failed", code, "script", f"the script ended with exit code {code}{full}")

    def finish(self, state: str, code: int, cause: str, detail: str) -> None:
        self.save(
            state=state,
            exit_code=code,
            first_cause=cause,
            detail=detail,
            finished=self.record["finished"] or self.lasted.ended(now()),
            log_bytes=self.log.size(),
        )
        self.deliver()

    def deliver(self) -> None:
        """See the final log and record into the bucket, then say whether they are there."""
        forget_secrets(self.folder)
        deadline = time.monotonic() + FINAL_COPY
        synced = False
        while self.spec.get("bucket") and not synced and time.monotonic() < deadline:
            self.tick()
            synced = self.courier is not None and self.courier.poll() == 0
        if self.courier is not None and self.courier.poll() is None:
            self.courier.kill()
        self.save(synced=synced)
        self.folder.give_back()


def ended_by(worker: int | None) -> tuple[str, str, str]:
    """The reason to end when someone asked for it, or another worker ended."""
    if worker is None:
        return ("stopped", "stopped", "stopped on request")
    return ("stopped", "worker", f"worker {worker} ended first")
