"""What happens, as values: flows emit them, views show them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from tpuctl.errors import Diagnostic

__all__ = [
    "Emit",
    "Event",
    "LogChunk",
    "Note",
    "Outcome",
    "StepFinished",
    "StepProgress",
    "StepStarted",
    "Warned",
    "ignore",
]


class Outcome(Enum):
    """How a step ended."""

    DONE = "done"
    UNCHANGED = "unchanged"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class StepStarted:
    """Work on one thing began: `action` is a verb, as in "create"."""

    address: str
    action: str
    because: str = ""


@dataclass(frozen=True)
class StepProgress:
    """What a step waits for now; `fraction` is between 0 and 1, or None where nobody knows."""

    address: str
    text: str
    fraction: float | None = None


@dataclass(frozen=True)
class StepFinished:
    """Work on one thing ended after `seconds`."""

    address: str
    outcome: Outcome
    seconds: float
    because: str = ""


@dataclass(frozen=True)
class LogChunk:
    """Bytes of one worker's log, starting at byte `offset` of it."""

    worker: int
    data: bytes
    offset: int


@dataclass(frozen=True)
class Note:
    """Something worth a line."""

    text: str


@dataclass(frozen=True)
class Warned:
    """Something is not as it should be, and the command goes on; an error if it was the aim."""

    diagnostic: Diagnostic
    is_error: bool = False


Event = StepStarted | StepProgress | StepFinished | LogChunk | Note | Warned
Emit = Callable[[Event], None]


def ignore(event: Event) -> None:
    """A listener for whoever wants none."""
