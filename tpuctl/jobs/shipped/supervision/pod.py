"""Runs an exported job in a container of Kubernetes, as a supervisor does on a TPU VM.

`pod_start.py` has put this file next to the other shipped programs, and runs it as `python3 -S -I
pod.py FOLDER COMMAND...`: standard library only, Python 3.8 and later. It prepares the job like any
attempt, runs it with its output to the container's, and exits with its exit code, so that the rules
of the manifest decide what follows. Kubernetes does the rest: limits, restarts, logs.

The container has in its environment TPUCTL_SPEC, the keys of `spec.json` that all workers share, as
JSON; JOBSET_RESTART_ATTEMPT and JOBSET_JOB_INDEX, labels of the pod; and Kubernetes'
JOB_COMPLETION_INDEX.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time

# The other shipped files are in this folder: search it after the standard library.
sys.path.append(os.path.dirname(os.path.abspath(__file__)))
TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from typing import Any

    from tpuctl.jobs.shipped.downloads.compilation_cache import CompilationCache
    from tpuctl.jobs.shipped.machine.folder import Folder
    from tpuctl.jobs.shipped.machine.network_variables import set_variables, use_network
    from tpuctl.jobs.shipped.machine.processes import descendants, signal_all
    from tpuctl.jobs.shipped.machine.storage import Bucket
    from tpuctl.jobs.shipped.supervision.job_parent import start, wait_for
    from tpuctl.jobs.shipped.supervision.preparation import Command, Failure, prepare
else:
    from compilation_cache import CompilationCache
    from folder import Folder
    from job_parent import start, wait_for
    from network_variables import set_variables, use_network
    from preparation import Command, Failure, prepare
    from processes import descendants, signal_all
    from storage import Bucket

EXIT_RETRY, EXIT_STOPPED = 75, 143
TICK = 0.25  # seconds between checks for SIGTERM and for new messages
CACHE_SECONDS = 60.0  # between uploads of compiled programs
PEER_SECONDS = 60.0  # in which Kubernetes notices that the machine of another worker is gone


class Pod:
    """One attempt of a job in one pod. SIGTERM, of an eviction, ends it."""

    def __init__(self, folder: Folder, spec: dict[str, Any]) -> None:
        self.folder = folder
        self.spec = spec
        self.printed = 0  # bytes of the folder's log
        self.has_started = False  # the job, after its preparation
        self.was_terminated = False
        signal.signal(signal.SIGTERM, lambda *_: self.terminate())

    def terminate(self) -> None:
        """Let the job save; it has the grace period of the manifest."""
        self.was_terminated = True
        if self.has_started:
            signal_all(descendants(os.getpid()), signal.SIGTERM)

    def print_log(self) -> None:
        """Print new messages of the preparation."""
        try:
            with open(self.folder.file("log"), "rb") as log:
                log.seek(self.printed)
                text = log.read()
        except FileNotFoundError:
            return
        self.printed += len(text)
        sys.stdout.write(text.decode(errors="replace"))
        sys.stdout.flush()

    def tick(self) -> None:
        """Wait briefly during the preparation; raises if the pod is evicted."""
        self.print_log()
        if self.was_terminated:
            raise Failure("terminated", "the pod was evicted")
        time.sleep(TICK)

    def run(self) -> int:
        """Prepare and run the job; returns the exit code of the container."""
        try:
            command = prepare(self.folder, self.spec, self.tick)
        except Failure as failure:
            self.folder.log(f"{failure.cause}: {failure.detail}")
            self.print_log()
            # Downloads fail for reasons that pass; requirements and commands of the job do not.
            code = {"terminated": EXIT_STOPPED, "bundle": EXIT_RETRY}.get(failure.cause, 1)
        else:
            self.print_log()
            code = self.run_command(command)
        if self.was_terminated:
            return code or EXIT_STOPPED  # even if it saved its state and exited with 0
        if code not in (0, EXIT_RETRY):
            self.wait_for_peers(code)
        return code

    def run_command(self, command: Command) -> int:
        os.environ.clear()
        os.environ.update(command.environment)
        try:
            job = start(command.argv, command.cwd, sys.stdout.fileno())
        except OSError as error:
            self.report(f"cannot start {command.argv[0]}: {error.strerror}")
            return 126 if isinstance(error, PermissionError) else 127
        self.has_started = True
        if self.was_terminated:
            self.terminate()  # it came just before the job started
        cache = None
        if self.spec.get("cache"):
            cache = CompilationCache(self.spec, Bucket(self.spec["bucket"]))
            threading.Thread(target=upload_regularly, args=(cache,), daemon=True).start()
        status = wait_for(job)
        if os.WIFSIGNALED(status):
            self.report(f"the job was killed by {signal.Signals(os.WTERMSIG(status)).name}")
            return 128 + os.WTERMSIG(status)
        if cache is not None:
            upload(cache, are_complete=True)
        return os.WEXITSTATUS(status)

    def wait_for_peers(self, code: int) -> None:
        """Exit later, if the failure may be that of another worker.

        When the machine of one worker is preempted, the others fail sooner than Kubernetes notices
        it. Their exit codes would then end the job, instead of restarting it.
        """
        seconds = float(self.spec.get("peer_seconds", PEER_SECONDS))
        if self.spec["workers"] > 1:
            self.report(f"exit code {code}, reported in {seconds:.0f} s unless the pod is evicted")
            until = time.monotonic() + seconds
            while not self.was_terminated and time.monotonic() < until:
                time.sleep(TICK)

    def report(self, text: str) -> None:
        print(f"tpuctl: {text}", flush=True)


def upload_regularly(cache: CompilationCache) -> None:
    """Upload compiled programs as long as the job runs: its end may be a preemption."""
    while True:
        time.sleep(CACHE_SECONDS)
        upload(cache, are_complete=False)


def upload(cache: CompilationCache, *, are_complete: bool) -> None:
    """Upload new programs; that this fails is of no consequence for the job."""
    try:
        cache.upload_new(are_complete=are_complete)
        if are_complete:
            cache.prune()
    except Exception as error:
        print(f"tpuctl: compiled programs were not uploaded: {error}", flush=True)


def read_spec(command: list[str]) -> dict[str, Any]:
    """The attempt's spec, from the container's environment, without what is only tpuctl's."""
    spec: dict[str, Any] = json.loads(os.environ.pop("TPUCTL_SPEC"))
    del os.environ["TPUCTL_PROGRAMS"]
    in_slice, index = int(os.environ.pop("JOBSET_JOB_INDEX")), os.environ["JOB_COMPLETION_INDEX"]
    spec["worker"] = in_slice * (spec["workers"] // spec["slices"]) + int(index)
    spec["attempt"] = int(os.environ.pop("JOBSET_RESTART_ATTEMPT")) + 1
    variables = {"TPUCTL_ATTEMPT": str(spec["attempt"]), "TPUCTL_WORKER": str(spec["worker"])}
    if spec["slices"] > 1:
        variables.update(TPUCTL_SLICE=str(in_slice), TPUCTL_SLICES=str(spec["slices"]))
    return {**spec, "argv": command, "env": variables}


def use_company_network(spec: dict[str, Any], folder: str) -> None:
    """Set variables for the network; the job's own, which the container has, take precedence."""
    if spec.get("network"):
        values = {name: os.environ[name] for name in spec["job_variables"] if name in os.environ}
        use_network(spec["network"], folder)
        set_variables(os.environ, values)


def main(arguments: list[str]) -> int:
    folder, spec = Folder(arguments[0]), read_spec(arguments[1:])
    use_company_network(spec, folder.path)
    folder.write("spec.json", spec)
    return Pod(folder, spec).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
