"""The explanation of how a job ended, with the relevant lines of its log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tpuctl.model.jobs.attempt import Attempt
from tpuctl.model.jobs.failures import Failure
from tpuctl.model.jobs.hang import Hang
from tpuctl.model.jobs.job import JobRecord, JobStatus
from tpuctl.model.logs.log_tail_signatures import LAST_LINES, LOG_TAIL
from tpuctl.model.text.terminal_text import without_control_characters

BEFORE, AFTER = 6, 3  # context lines
MAX_LINE_LENGTH = 400  # characters


@dataclass(frozen=True)
class Explanation:
    """A job, the status of its last attempt, and its failure, if any."""

    record: JobRecord  # as its last attempt runs it
    status: JobStatus
    failure: Failure | None = None  # of the last attempt
    lines: tuple[str, ...] = ()  # excerpt of the log around the cause
    attempts: tuple[Attempt, ...] = ()  # all but the first, each with why the previous one ended
    is_unqueried: bool = False  # the state of the machines could not be queried
    hangs: Mapping[int, Hang] = field(default_factory=dict)  # by worker


def relevant_lines(log_end: bytes, detail: str) -> tuple[str, ...]:
    """The line of the log that contains `detail`, with context; if there is none, the last
    lines."""
    text = log_end[-LOG_TAIL:].decode("utf-8", "replace").replace("\r", "\n")
    lines = [
        without_control_characters(line).rstrip()[:MAX_LINE_LENGTH] for line in text.split("\n")
    ]
    while lines and not lines[-1].strip():
        lines.pop()
    needle = without_control_characters(detail).strip()[:MAX_LINE_LENGTH]
    matches = [number for number, line in enumerate(lines) if needle and needle in line]
    if not matches:
        return tuple(line for line in lines[-LAST_LINES:] if line.strip())[-BEFORE - AFTER :]
    last_match = matches[-1]
    excerpt = lines[max(0, last_match - BEFORE) : last_match + AFTER + 1]
    return tuple(line for line in excerpt if line.strip())
