"""The exception tree: one branch for each thing a caller can do about a failure.

TpuctlError               what every expected failure derives from; carries a Diagnostic
├── Usage                 the command line or its input is wrong          exit 2
│   └── InvalidStack      the stack file is wrong (may carry several)     exit 2
├── Refused               checks refused the work before anything was sent exit 65
├── Unreachable           the cloud or a machine did not answer           exit 69
│   └── Transient         the same call may go through if repeated        exit 69
├── NoCapacity            the zone has none; another zone or time may     exit 75
├── QuotaExceeded         the project may not have more                   exit 76
├── Denied                permission, billing, API or policy in the way   exit 77
├── TimedOut              a limit in time or money was reached            exit 124
├── NotFound              what was named is not there                     exit 1
├── Conflict              it is there, but not ours or not as expected    exit 1
├── RemoteFailed          a command on a machine failed                   exit 1
└── OperationFailed       the cloud accepted the work and then failed it  exit 1
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

__all__ = [
    "Conflict",
    "Denied",
    "Diagnostic",
    "InvalidStack",
    "NoCapacity",
    "NotFound",
    "OperationFailed",
    "QuotaExceeded",
    "Refused",
    "RemoteFailed",
    "Scope",
    "TimedOut",
    "TpuctlError",
    "Transient",
    "Unreachable",
    "Usage",
]


class Scope(Enum):
    """How far a failure reaches: beyond it, the same request may succeed."""

    ZONE = "zone"
    REGION = "region"
    PROJECT = "project"  # no zone will do until something about the project is changed
    FATAL = "fatal"  # unknown, or the request itself is wrong: nothing else is tried


@dataclass(frozen=True)
class Diagnostic:
    """What a person is told about one problem.

    `summary` is a constant phrase for the kind of problem, `detail` names the things involved,
    `hint` says what to do (a command on its own indented line), `where` is `file:line` or a flag.
    """

    summary: str
    detail: str = ""
    hint: str = ""
    where: str = ""

    def as_dict(self) -> dict[str, str]:
        return {
            "summary": self.summary,
            "detail": self.detail,
            "hint": self.hint,
            "where": self.where,
        }


class TpuctlError(Exception):
    """An expected failure: shown as its diagnostics, without a traceback."""

    exit_code: ClassVar[int] = 1
    scope: Scope = Scope.FATAL

    def __init__(self, summary: str, detail: str = "", *, hint: str = "", where: str = "") -> None:
        self.diagnostics: Sequence[Diagnostic] = (Diagnostic(summary, detail, hint, where),)
        super().__init__(f"{summary}: {detail}" if detail else summary)


class Usage(TpuctlError):
    """The command line or its input is wrong."""

    exit_code = 2


class InvalidStack(Usage):
    """The stack file is wrong; every problem found is among `diagnostics`."""

    def __init__(self, diagnostics: Sequence[Diagnostic]) -> None:
        first = diagnostics[0]
        super().__init__(first.summary, first.detail, hint=first.hint, where=first.where)
        self.diagnostics = tuple(diagnostics)


class Refused(TpuctlError):
    """Checks refused the work before anything was sent."""

    exit_code = 65


class Unreachable(TpuctlError):
    """The cloud or a machine did not answer, or a worker is lost for good."""

    exit_code = 69


class Transient(Unreachable):
    """The same call may go through if it is repeated."""


class NoCapacity(TpuctlError):
    """The zone has no capacity now; another zone or a later time may have."""

    exit_code = 75


class QuotaExceeded(TpuctlError):
    """The project's quota does not allow more."""

    exit_code = 76


class Denied(TpuctlError):
    """A permission, billing, a disabled API or an organization policy is in the way."""

    exit_code = 77


class TimedOut(TpuctlError):
    """A limit in time or money was reached."""

    exit_code = 124


class NotFound(TpuctlError):
    """What was named is not there."""


class Conflict(TpuctlError):
    """It is there, but not ours, or not in the state that the call expects."""


class RemoteFailed(TpuctlError):
    """A command on a machine failed."""


class OperationFailed(TpuctlError):
    """The cloud accepted the work and failed it later."""
