"""What happens, as values: flows emit them, views show them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tpuctl.errors import Diagnostic

__all__ = [
    "CommandOutput",
    "Emit",
    "Event",
    "JobEnded",
    "LogChunk",
    "Note",
    "Outcome",
    "Planned",
    "PlannedStep",
    "PortForwarded",
    "StatusUpdate",
    "StepFinished",
    "StepProgress",
    "StepStarted",
    "WarningIssued",
    "ignore",
]


class Outcome(Enum):
    """How a step ended."""

    DONE = "done"
    UNCHANGED = "unchanged"
    FAILED = "failed"
    SKIPPED = "skipped"
    INTERRUPTED = "interrupted"  # whoever waited for it; the cloud may go on


@dataclass(frozen=True)
class PlannedStep:
    """One thing that is to be worked on, after the addresses in `after`.

    `action` is a verb, as in "create"; "nothing" and "leave" say that it stays as it is.
    """

    address: str
    action: str
    because: str = ""
    depends_on: tuple[str, ...] = ()


@dataclass(frozen=True)
class Planned:
    """What is going to be done: each of the steps begins, or is skipped, later on.

    Steps that were not planned may come between, and further plans may follow.
    """

    steps: tuple[PlannedStep, ...]


@dataclass(frozen=True)
class StepStarted:
    """Work on one thing began: `action` is a verb, as in "create"."""

    address: str
    action: str
    because: str = ""


@dataclass(frozen=True)
class StepProgress:
    """What a step waits for now; `fraction` is between 0 and 1, or None where nobody knows.

    Where bytes are sent or fetched, `done` of `total` have arrived; both are null elsewhere.
    """

    address: str
    text: str
    fraction: float | None = None
    done: int | None = None
    total: int | None = None


@dataclass(frozen=True)
class StepFinished:
    """Work on one thing ended after `seconds`."""

    address: str
    outcome: Outcome
    seconds: float
    because: str = ""


@dataclass(frozen=True)
class LogChunk:
    """Bytes of one worker's log of one attempt, starting at byte `offset` of it."""

    worker: int
    data: bytes
    offset: int
    attempt: int = 1


@dataclass(frozen=True)
class CommandOutput:
    """Bytes that a command on a worker wrote, to its stderr where `is_error`."""

    worker: int
    data: bytes
    is_error: bool = False


@dataclass(frozen=True)
class PortForwarded:
    """Connections to `local_port` here, at `url`, lead to `port` of a worker from now on."""

    worker: int
    port: int
    local_port: int
    url: str


@dataclass(frozen=True)
class JobEnded:
    """How a job ended that was followed.

    `is_job_exit_code` is false where `exit_code` is one of tpuctl's.
    """

    job: str
    state: str  # succeeded, failed, stopped, timed_out or lost
    exit_code: int
    is_job_exit_code: bool
    worker: int | None = None  # the one that decided, where one did
    detail: str = ""


@dataclass(frozen=True)
class StatusUpdate:
    """A stack as it was seen at `at`: `data` is what `status` answers with.

    `problem` is why something could not be asked just now; that is as it was seen last.
    """

    at: str
    data: Mapping[str, Any]
    problem: str = ""


@dataclass(frozen=True)
class Note:
    """Something worth a line."""

    text: str


@dataclass(frozen=True)
class WarningIssued:
    """Something is not as it should be, and the command goes on; an error if it was the aim."""

    diagnostic: Diagnostic
    is_error: bool = False


Event = (
    Planned
    | StepStarted
    | StepProgress
    | StepFinished
    | LogChunk
    | CommandOutput
    | PortForwarded
    | JobEnded
    | StatusUpdate
    | Note
    | WarningIssued
)
Emit = Callable[[Event], None]


def ignore(event: Event) -> None:
    """A listener for whoever wants none."""
