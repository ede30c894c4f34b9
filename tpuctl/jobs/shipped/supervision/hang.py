"""Reports that a job makes no progress any more, with the stacks of its processes.

Progress is a new step in the log, or any output if `job.limits.hang` is a duration. A worker that
notices a hang writes `hang_report.json`; its uploader passes it on to the uploaders of the other
workers, which write `hang.json`, so that all workers report their stacks.

Like `attempt.py`, which imports it, this file is sent to workers as it is: standard library only,
Python 3.8 and later.
"""

from __future__ import annotations

import os
import re
import sys
import time

# The other shipped files are in this folder, as is the job's code: search it after the standard
# library.
sys.path.append(os.path.dirname(os.path.abspath(__file__)))
TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from typing import Any

    from tpuctl.jobs.shipped.logs.logfile import Freed, Log
    from tpuctl.jobs.shipped.machine.folder import Folder
    from tpuctl.jobs.shipped.machine.worker_names import worker_name
    from tpuctl.jobs.shipped.tracing.stacks import read_stacks
else:
    from logfile import Freed, Log
    from stacks import read_stacks
    from worker_names import worker_name

# As training loops print it: {"step": 12}, 'step': 12, step=12, Step 12/100, iteration: 12.
STEP = re.compile(rb"(?i)\b(?:global[_ ]?)?(?:step|iter(?:ation)?|batch)s?[\"']?\s*[:=#]?\s*(\d+)")
OWN_LINE = b"tpuctl: "
MIN_SECONDS = 300.0  # shorter pauses are usual, such as for a checkpoint
LONGER = 2.0  # than the longest pause so far, such as for an evaluation
MIN_INTERVALS, MAX_INTERVALS = 5, 1000
READ_BYTES = 1 << 16  # of new output, searched for a step
MAX_CALLS = 30  # of a stack in the record


class Progress:
    """A job's progress, by its log."""

    def __init__(self, limit: dict[str, Any], log: Log) -> None:
        self.limit = limit
        self.log = log
        self.offset = log.size()
        self.step = b""
        self.has_begun = False  # since this supervisor started
        self.at = time.monotonic()
        self.intervals: list[float] = []
        self.longest = 0.0

    def update(self) -> float:
        """Seconds since the last progress."""
        now = time.monotonic()
        size = self.log.size()
        if size > self.offset:
            begin = max(self.offset, size - READ_BYTES)
            self.offset = size
            try:
                output = self.log.read(begin, size - begin)
            except Freed:
                output = b""
            if self.is_progress(output):
                if self.step:  # the first step follows the start and compilation
                    self.intervals = [*self.intervals[1 - MAX_INTERVALS :], now - self.at]
                    self.longest = max(self.longest, now - self.at)
                self.at, self.has_begun = now, True
        return now - self.at

    def is_progress(self, output: bytes) -> bool:
        lines = [line for line in output.split(b"\n") if not line.startswith(OWN_LINE)]
        steps = STEP.findall(b"\n".join(lines))
        before, self.step = self.step, steps[-1] if steps else self.step
        return self.step != before or ("seconds" in self.limit and any(lines))

    def longest_pause(self) -> float | None:
        """Seconds after which a pause is a hang; None if there are too few steps to say."""
        if "seconds" in self.limit:
            return float(self.limit["seconds"])
        if len(self.intervals) < MIN_INTERVALS:
            return None
        shortest = float(self.limit.get("min_seconds", MIN_SECONDS))
        return max(shortest, float(self.limit["factor"]) * self.median(), LONGER * self.longest)

    def median(self) -> float:
        return sorted(self.intervals)[len(self.intervals) // 2]

    def describe(self, pause: float) -> str:
        if not self.step:
            return f"no output for {duration(pause)}"
        after = f"no step for {duration(pause)}, after step {self.step.decode()}"
        if len(self.intervals) < MIN_INTERVALS:
            return after
        return f"{after} (a step usually takes {duration(self.median())})"


class HangWatch:
    """Reports hangs of an attempt on one worker, and that it continues."""

    def __init__(self, folder: Folder, spec: dict[str, Any]) -> None:
        self.folder = folder
        self.spec = spec
        self.worker: int = spec["worker"]
        self.limit: dict[str, Any] | None = spec.get("hang")
        self.progress = Progress(self.limit, Log(folder)) if self.limit else None

    def update(self, hang: dict[str, Any] | None) -> dict[str, Any] | None:
        """The hang as of now, for the record, where `hang` is the one so far.

        Writes the stacks of the job's processes to the log when it begins.
        """
        if self.progress is None:
            return None
        pause, longest = self.progress.update(), self.progress.longest_pause()
        is_hanging = longest is not None and pause > longest
        is_own = hang is not None and hang["worker"] == self.worker
        if is_hanging and not is_own:
            detail = self.progress.describe(pause)
            self.folder.write("hang_report.json", {"worker": self.worker, "is_over": False})
            return self.report(f"the job may hang: {detail}", self.worker, detail)
        if is_own and not is_hanging and self.progress.has_begun:
            self.folder.write("hang_report.json", {"worker": self.worker, "is_over": True})
            self.folder.log("the job continues")
            return None
        other = None if is_own else self.folder.read("hang.json")
        if other is not None and other["worker"] != self.worker:
            if other["is_over"]:
                return None
            if hang is None:
                detail = f"reported by worker {worker_name(self.spec, other['worker'])}"
                return self.report(f"the job may hang: {detail}", other["worker"], detail)
        return hang

    def report(self, message: str, worker: int, detail: str) -> dict[str, Any]:
        job_parent = self.folder.job_parent()
        stacks = [] if job_parent is None else read_stacks(job_parent)
        self.folder.log("\n".join([message, *(f"tpuctl: {stack.text}" for stack in stacks)]))
        if self.progress is not None:
            self.progress.offset = self.progress.log.size()  # the stacks are no progress
        calls = stacks[0].calls[:MAX_CALLS] if stacks else []
        return {"worker": worker, "detail": detail, "stack": calls}


def duration(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds / 60:.3g} min"
