"""Events: flows emit them, views display them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tpuctl.errors import Diagnostic


class Outcome(Enum):
    """How a step ended."""

    DONE = "done"
    UNCHANGED = "unchanged"
    FAILED = "failed"
    SKIPPED = "skipped"
    INTERRUPTED = "interrupted"  # the wait for it; the cloud may continue


@dataclass(frozen=True)
class PlannedStep:
    """A planned step, which runs after the addresses in `depends_on`.

    `action` is a verb such as "create"; "nothing" and "leave" mean no change.
    """

    address: str
    action: str
    because: str = ""
    depends_on: tuple[str, ...] = ()


@dataclass(frozen=True)
class Planned:
    """The planned steps; each later starts or is skipped.

    Unplanned steps may occur in between, and more plans may follow.
    """

    steps: tuple[PlannedStep, ...]


@dataclass(frozen=True)
class StepStarted:
    """A step started; `action` is a verb such as "create"."""

    address: str
    action: str
    because: str = ""


@dataclass(frozen=True)
class StepProgress:
    """What a step is waiting for; `fraction` is between 0 and 1, or None if unknown.

    For transfers, `done` of `total` bytes have arrived; otherwise both are null.
    """

    address: str
    text: str
    fraction: float | None = None
    done: int | None = None
    total: int | None = None


@dataclass(frozen=True)
class StepFinished:
    """A step ended after `seconds`."""

    address: str
    outcome: Outcome
    seconds: float
    because: str = ""


@dataclass(frozen=True)
class LogChunk:
    """A chunk of a worker's log of one attempt, starting at byte `offset`.

    Here and below, `slice` is that of the worker in a stack of several slices.
    """

    worker: int
    data: bytes
    offset: int
    attempt: int = 1
    slice: int | None = None


@dataclass(frozen=True)
class CommandOutput:
    """Output of a command on a worker; from stderr if `is_error`."""

    worker: int
    data: bytes
    is_error: bool = False
    slice: int | None = None


@dataclass(frozen=True)
class PortForwarded:
    """Connections to `local_port` on this machine, at `url`, are now forwarded to `port` of a
    worker."""

    worker: int
    worker_name: str
    port: int
    local_port: int
    url: str


@dataclass(frozen=True)
class PageServed:
    """A page for the user's browser is now served at `url`."""

    url: str


@dataclass(frozen=True)
class JobEnded:
    """A followed job ended.

    `is_job_exit_code` is false where `exit_code` is one of tpuctl's.
    """

    job: str
    state: str  # succeeded, failed, stopped, timed_out or lost
    exit_code: int
    is_job_exit_code: bool
    worker: int | None = None  # the worker that determined the result, if any
    detail: str = ""
    slice: int | None = None


@dataclass(frozen=True)
class StatusUpdate:
    """The state of a stack at `at`; `data` is as in `status`.

    `problem` is why part of it could not be queried: that part is from an earlier query.
    """

    at: str
    data: Mapping[str, Any]
    problem: str = ""


@dataclass(frozen=True)
class Note:
    """An informational message."""

    text: str


@dataclass(frozen=True)
class WarningIssued:
    """A problem that does not stop the command; `is_error` if part of its task failed."""

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
    | PageServed
    | JobEnded
    | StatusUpdate
    | Note
    | WarningIssued
)
Emit = Callable[[Event], None]


def ignore(event: Event) -> None:
    """A listener that ignores all events."""
