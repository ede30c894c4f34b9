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
import sys
import time

# The other shipped files are in this folder, as is the job's code: search it after the standard
# library.
sys.path.append(os.path.dirname(os.path.abspath(__file__)))
TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from typing import Any

    from tpuctl.jobs.shipped.chips.chip_metrics import ChipSampler
    from tpuctl.jobs.shipped.chips.chips import has_chips
    from tpuctl.jobs.shipped.logs.logfile import Log
    from tpuctl.jobs.shipped.machine.clock import Stopwatch, now
    from tpuctl.jobs.shipped.machine.folder import ENDED, Folder, private
    from tpuctl.jobs.shipped.machine.forked import Process, fork_program
    from tpuctl.jobs.shipped.machine.network_variables import use_network
    from tpuctl.jobs.shipped.machine.processes import FOLDER, of_attempt, stop
    from tpuctl.jobs.shipped.machine.worker_names import worker_name
    from tpuctl.jobs.shipped.supervision.hang import HangWatch
    from tpuctl.jobs.shipped.supervision.preparation import (
        Command,
        Failure,
        delete_secrets,
        forked,
        prepare,
        prepend,
        run_step,
        tool_command,
        write_shell_environment,
    )
    from tpuctl.jobs.shipped.tracing.stacks import handler_folder
else:
    from chip_metrics import ChipSampler
    from chips import has_chips
    from clock import Stopwatch, now
    from folder import ENDED, Folder, private
    from forked import Process, fork_program
    from hang import HangWatch
    from logfile import Log
    from network_variables import use_network
    from preparation import (
        Command,
        Failure,
        delete_secrets,
        forked,
        prepare,
        prepend,
        run_step,
        tool_command,
        write_shell_environment,
    )
    from processes import FOLDER, of_attempt, stop
    from stacks import handler_folder
    from worker_names import worker_name

MACHINE_NOTE = "TPUCTL_MACHINE_NOTE"  # how a local machine differs from the requested one
EXIT_LOST, EXIT_RETRY, EXIT_STOPPED, EXIT_TIMED_OUT = 69, 75, 143, 124
TICK = 0.25  # seconds between checks of limits and requests
SHORT_JOB_SECONDS = 5.0  # shorter jobs are uploaded only once, at their end
LEFTOVER_GRACE = 5.0  # seconds between SIGTERM and SIGKILL for leftover processes of a lost job
SHUTDOWN_WINDOW = 2.0  # seconds in which a machine that shuts down sends SIGTERM to all processes
FINAL_UPLOAD_SECONDS = 600.0  # timeout of the last upload of log and record
PAUSE, MAX_PAUSE = 1.0, 32.0  # seconds before a restart of the script: doubled each time
START_CHECK_SECONDS = 40.0  # after which workers that have not arrived are reported
HANG_REPORT_SECONDS = 60.0  # in which other workers report their stacks, before all are restarted
LOG_TAIL_BYTES = 1 << 16  # of a script's output, searched for its last error


class Interrupted(Exception):
    """The attempt was stopped while it was being prepared."""


class Attempt:
    """Brings one attempt from its spec to its final record."""

    def __init__(self, folder: Folder, spec: dict[str, Any]) -> None:
        self.folder = folder
        self.spec = spec
        use_network(spec.get("network"), folder.path)
        saved_record = folder.read("record.json")
        self.record: dict[str, Any] = saved_record or {
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
            "cause": "",
            "detail": "",
            "hang": None,
            "chips": None,
            "log_uploaded": None,
        }
        self.stopwatch = Stopwatch(self.record["started"], self.record.get("clock"))
        self.record["clock"] = self.stopwatch.state
        self.job_parent: Process | None = None
        self.uploader: Process | None = None
        self.start_check: Process | None = None
        self.ending: tuple[str, str, str] | None = None  # state, cause, detail
        self.grace = float(spec.get("grace_seconds", 30))
        self.kill_at = 0.0
        self.hang_since = 0.0
        self.has_pending_sigterm = False  # the job parent must still be signaled to end the job,
        self.sigterm_at = 0.0  # not before this time
        self.was_terminated = False
        self.wakeup, wake = os.pipe()
        for end in (self.wakeup, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self.terminate())
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # accompanies SIGTERM when a session ends
        open(folder.file("log"), "ab", opener=private).close()
        self.log = Log(folder)
        if saved_record is None:
            folder.reserve_space()
            if os.environ.get(MACHINE_NOTE):
                folder.log(f"this machine has {os.environ[MACHINE_NOTE]}")
        self.save()

    def terminate(self) -> None:
        """The machine is shutting down: the job may save, and its end is not its fault.

        It is signaled a little later, when the job parent knows whether the machine sent SIGTERM
        to all processes.
        """
        exited = self.folder.read("exit.json")
        if exited is None or exited["signal"] == signal.SIGTERM:  # otherwise it exited by itself
            self.has_pending_sigterm = self.was_terminated = True
            self.sigterm_at = time.monotonic() + TICK

    def run(self) -> None:
        if self.record["state"] in ENDED:
            return self.deliver()
        try:
            while True:
                if self.must_launch():
                    command = prepare(self.folder, self.spec, self.interrupt)
                    self.free_accelerator()
                    self.await_start()
                    self.launch(command)
                chip_sampler = ChipSampler(self.folder, self.spec)
                self.save(state="running", chips=chip_sampler.sample)
                exited = self.watch(chip_sampler)
                pause = self.restart_delay(exited)
                if pause is None:
                    return self.conclude(exited)
                self.wait_for_restart(pause)
        except Interrupted:
            self.conclude({"exit_code": None, "signal": None, "finished": now()})
        except Failure as failure:
            self.folder.log(f"{failure.cause}: {failure.detail}")
            state, code = ("failed", 1)
            if failure.cause == "lost":
                state, code = ("lost", EXIT_LOST)
                stop(lambda: of_attempt(self.folder.path), LEFTOVER_GRACE)
            self.finish(state, code, failure.cause, failure.detail)
        except Exception as error:
            import traceback

            traceback.print_exc()
            self.finish("failed", 1, "supervisor", f"{type(error).__name__}: {error}")

    def save(self, **changes: Any) -> None:
        self.record.update(changes)
        self.folder.write("record.json", self.record)

    def tick(self) -> None:
        """Check everything that may end the attempt, then sleep briefly.

        A signal, or the exit of a child, interrupts the sleep.
        """
        self.log.update()
        if self.ending is None:
            self.ending = self.reason_to_end()
            if self.ending is not None:
                self.kill_at = time.monotonic() + self.grace
                self.has_pending_sigterm, self.sigterm_at = True, 0.0
        elif time.monotonic() >= self.kill_at:
            self.signal_job_parent(signal.SIGUSR1)
        if self.has_pending_sigterm and time.monotonic() >= self.sigterm_at:
            self.has_pending_sigterm = not self.signal_job_parent(signal.SIGUSR2)
        if self.needs_uploader() and (self.uploader is None or self.uploader.poll() is not None):
            self.uploader = fork_program("uploader", self.folder.path)
        select.select([self.wakeup], [], [], TICK)
        with contextlib.suppress(BlockingIOError):
            os.read(self.wakeup, 512)

    def needs_uploader(self) -> bool:
        """Whether an uploader is needed; starting one may cost more than a short job."""
        is_short = (
            self.stopwatch.seconds() < SHORT_JOB_SECONDS and self.record["state"] not in ENDED
        )
        return bool(self.spec.get("bucket")) and not is_short

    def reason_to_end(self) -> tuple[str, str, str] | None:
        stop = self.folder.read("stop.json")
        if stop is not None:
            self.grace = float(stop["grace"])
            if stop.get("limit"):
                return ("timed_out", stop["limit"], stop["detail"])
            return self.ended_by(stop.get("worker"))
        limit = self.spec.get("max_seconds")
        if limit and self.stopwatch.seconds() >= limit:
            cause = self.spec.get("limit") or "max_hours"
            return ("timed_out", cause, f"ran for {limit / 3600:.6g} hours")
        end = self.folder.read("end.json")
        if end is not None and end.get("worker") != self.spec["worker"]:
            return self.ended_by(end.get("worker"))
        hang, limit = self.record.get("hang"), self.spec.get("hang") or {}
        if limit.get("is_restarted") and hang is not None and hang["worker"] == self.spec["worker"]:
            wait = HANG_REPORT_SECONDS if self.spec.get("start_barrier") else 0.0
            if time.monotonic() >= self.hang_since + wait:
                return ("failed", "hang", f"the job hung: {hang['detail']}")
        return None

    def signal_job_parent(self, number: int) -> bool:
        """Signal the job parent; False if there is none, or none yet."""
        pid = self.folder.job_parent()
        if pid is None or not self.folder.is_locked("job.lock"):
            return False
        os.kill(pid, number)
        return True

    def interrupt(self) -> None:
        """Tick during the preparation; raises if the attempt must end."""
        self.tick()
        if self.ending is not None:
            raise Interrupted
        if self.was_terminated:
            raise Failure("terminated", "the machine was shut down")

    def free_accelerator(self) -> None:
        """Free the chips for the script, if there are any."""
        if has_chips(self.spec):
            run_step(self.folder, self.interrupt, "accelerator", forked("accelerator", self.folder))

    def await_start(self) -> None:
        """Wait for the start signal, if several workers must start at the same time.

        It is sent over SSH, or through the bucket, once all of them are ready.
        """
        barrier = self.spec.get("start_barrier")
        if not barrier:
            return
        if "ready" not in self.record:
            self.record["ready"] = self.stopwatch.seconds()
        self.save(state="ready")
        is_first = barrier["workers"][:1] == [self.spec["worker"]]
        began = time.monotonic()
        while not os.path.exists(self.folder.file("start")):
            if self.stopwatch.seconds() - self.record["ready"] >= barrier["timeout_seconds"]:
                missing = (self.folder.read("missing.json") or {}).get("workers")
                who = "worker " + ", ".join(map(str, missing)) if missing else "another worker"
                minutes = f"{barrier['timeout_seconds'] / 60:.3g} minutes"
                raise Failure("slice", f"{who} was not ready to start within {minutes}")
            if is_first:
                self.check_start(began)
            self.interrupt()
        self.start_check = None  # the next one checks what happens after the start

    def check_start(self, began: float) -> None:
        """Start a check after some time, if several workers start at the same time."""
        barrier = self.spec.get("start_barrier")
        if barrier and self.spec.get("bucket") and self.start_check is None:
            wait: float = barrier.get("check_seconds", START_CHECK_SECONDS)
            if time.monotonic() - began >= wait:
                self.start_check = fork_program("start_check", self.folder.path)
        elif self.start_check is not None:
            self.start_check.poll()

    def must_launch(self) -> bool:
        """Whether the script must be started, or restarted."""
        started = self.folder.read("started.json")
        if started is None:
            return not self.folder.is_locked("job.lock")
        return "job_parent" not in started

    def launch(self, command: Command) -> None:
        argv = tool_command("job_parent.py", self.folder.path, command.cwd, *command.argv)
        environment = {**command.environment, FOLDER: self.folder.path}
        with contextlib.suppress(OSError):  # the job runs without it, too
            prepend(environment, "PYTHONPATH", [handler_folder(self.folder)])
        self.job_parent = Process(os.posix_spawn(argv[0], argv, environment, setsid=True))
        write_shell_environment(self.spec, command.environment)

    def watch(self, chip_sampler: ChipSampler) -> dict[str, Any]:
        """Wait for the script; return its exit."""
        hang_watch = HangWatch(self.folder, self.spec)
        began = time.monotonic()
        while True:
            is_alive = self.job_parent is not None and self.job_parent.poll() is None
            is_alive = is_alive or self.folder.is_locked("job.lock")
            exited = self.folder.read("exit.json")
            if exited is not None:
                return exited
            if not is_alive and self.was_terminated:
                raise Failure("terminated", "the machine was shut down")
            if not is_alive:
                raise Failure(
                    "lost",
                    "the job's processes are gone: the machine restarted or ran out of memory",
                )
            if self.ending is None and not self.was_terminated:
                self.check_start(began)
                self.check_progress(hang_watch)
                self.record_chips(chip_sampler)
            self.tick()

    def check_progress(self, hang_watch: HangWatch) -> None:
        """Record a hang of the job, or that it continues."""
        before = self.record.get("hang")
        hang = hang_watch.update(before)
        if hang != before:
            self.hang_since = time.monotonic()
            self.save(hang=hang)

    def record_chips(self, chip_sampler: ChipSampler) -> None:
        sample = chip_sampler.update()
        if sample != self.record.get("chips"):
            self.save(chips=sample)

    def restart_delay(self, exited: dict[str, Any]) -> float | None:
        """Seconds until the script should be restarted; None if its exit is final.

        A TPU node reads and writes gs:// as an account of Google's, whose access cannot be tested
        in advance. Thus its denial is retried for some minutes after the node was created. The
        message is Cloud Storage's, as TensorFlow prints it (googlecolab/colabtools issue 1177;
        google-research/text-to-text-transfer-transformer issue 1003).
        """
        access = self.spec.get("first_access")
        if not access or not exited["exit_code"] or self.ending or self.was_terminated:
            return None
        remaining: float = access["seconds"] - self.stopwatch.seconds()
        with open(self.folder.file("log"), "rb") as log:
            log.seek(max(exited["log_offset"], log.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
            account = rb"(?<![\w.-])" + re.escape(access["account"].encode())
            denial = re.search(account + rb" does not have storage\.[\w.]+ access", log.read())
        if denial is None or remaining <= 0:
            return None
        pause: float = access.get("pause", PAUSE) * 2 ** self.record["restarts"]
        return min(pause, MAX_PAUSE, remaining)

    def wait_for_restart(self, pause: float) -> None:
        """Remove the state of the previous start, except its log, and wait."""
        number = self.record["restarts"] + 1
        if self.spec.get("bundle"):  # a fresh copy is unpacked, as for the first start
            used = self.folder.file(f"code.{number}")
            with contextlib.suppress(FileNotFoundError):
                os.rename(self.folder.file("code"), used)
            shutil.rmtree(used, ignore_errors=True)
        self.save(restarts=number)
        self.folder.log(
            "waiting for the TPU's service account to get access: restarting the script in "
            f"{pause:.2g} s"
        )
        # Atomic: a supervisor that takes over afterwards restarts the script too.
        os.replace(self.folder.file("exit.json"), self.folder.file("started.json"))
        until = time.monotonic() + pause
        while time.monotonic() < until:
            self.interrupt()

    def conclude(self, exited: dict[str, Any]) -> None:
        code, number = exited["exit_code"], exited["signal"]
        until = time.monotonic() + SHUTDOWN_WINDOW
        while number == signal.SIGTERM and time.monotonic() < until:
            if self.was_terminated or self.ending is not None:
                break
            self.tick()
        self.record.update(signal=number, finished=self.stopwatch.end_time(exited["finished"]))
        if number:
            code = 128 + number
        if self.ending is not None:
            state, cause, detail = self.ending
            code = EXIT_STOPPED if state == "stopped" else EXIT_TIMED_OUT
            self.finish(state, code, cause, detail)
        elif self.was_terminated:  # even if the script saved its state and exited with 0
            self.finish("failed", code or EXIT_STOPPED, "terminated", "the machine was shut down")
        elif code == 0:
            self.finish("succeeded", 0, "", "")
        elif number:
            name = signal.Signals(number).name
            self.finish("failed", code, "signal", f"the script was killed by {name}")
        elif code == EXIT_RETRY:
            detail = f"the job asked for another attempt: it exited with code {code}"
            self.folder.log(detail)
            self.finish("failed", code, "script", detail)
        else:
            full = "; the machine's disk is full" if self.folder.is_full() else ""
            self.finish("failed", code, "script", f"the script failed with exit code {code}{full}")

    def finish(self, state: str, code: int, cause: str, detail: str) -> None:
        self.save(
            state=state,
            exit_code=code,
            cause=cause,
            detail=detail,
            hang=None if state == "succeeded" else self.record.get("hang"),
            finished=self.record["finished"] or self.stopwatch.end_time(now()),
            log_bytes=self.log.size(),
        )
        self.deliver()

    def deliver(self) -> None:
        """Wait for the upload of the final log and record, then record whether it succeeded."""
        delete_secrets(self.folder)
        deadline = time.monotonic() + FINAL_UPLOAD_SECONDS
        log_uploaded = False
        while self.spec.get("bucket") and not log_uploaded and time.monotonic() < deadline:
            self.tick()
            log_uploaded = self.uploader is not None and self.uploader.poll() == 0
        if self.uploader is not None and self.uploader.poll() is None:
            self.uploader.kill()
        self.save(log_uploaded=log_uploaded)
        self.folder.release_space()

    def ended_by(self, worker: int | None) -> tuple[str, str, str]:
        """The reason to end by request, or because another worker ended."""
        if worker is None:
            return ("stopped", "stopped", "stopped by request")
        return ("stopped", "worker", f"worker {worker_name(self.spec, worker)} ended first")
