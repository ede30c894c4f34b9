"""Why a job ended as it did, as a value; the lines of its log that show it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tpuctl.model.attempt import Attempt
from tpuctl.model.failures import Failure
from tpuctl.model.job import JobRecord, JobStatus
from tpuctl.model.log_tail_signatures import LAST_LINES, LOG_TAIL

__all__ = ["CONTROL", "Explanation", "relevant_lines"]

BEFORE, AFTER = 6, 3  # lines around the one that tells
MAX_LINE_LENGTH = 400  # characters of a line
# What colors and moves on a terminal, and other characters that nobody reads.
CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f]"
)


@dataclass(frozen=True)
class Explanation:
    """A job, how its last attempt stands, and why that failed if it did."""

    record: JobRecord  # as its last attempt runs it
    status: JobStatus
    failure: Failure | None = None  # of the last attempt
    lines: tuple[str, ...] = ()  # of the log, with the one that tells among them
    attempts: tuple[Attempt, ...] = ()  # all but the first, each with why the one before ended
    is_unqueried: bool = False  # the cloud did not say what became of the machines


def relevant_lines(log_end: bytes, detail: str) -> tuple[str, ...]:
    """The line that `detail` is of, with some around it; the last lines where it is none's."""
    text = log_end[-LOG_TAIL:].decode("utf-8", "replace").replace("\r", "\n")
    lines = [CONTROL.sub("", line).rstrip()[:MAX_LINE_LENGTH] for line in text.split("\n")]
    while lines and not lines[-1].strip():
        lines.pop()
    needle = CONTROL.sub("", detail).strip()[:MAX_LINE_LENGTH]
    matches = [number for number, line in enumerate(lines) if needle and needle in line]
    if not matches:
        return tuple(line for line in lines[-LAST_LINES:] if line.strip())[-BEFORE - AFTER :]
    last_match = matches[-1]
    excerpt = lines[max(0, last_match - BEFORE) : last_match + AFTER + 1]
    return tuple(line for line in excerpt if line.strip())
