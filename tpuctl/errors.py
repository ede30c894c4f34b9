"""Exception hierarchy: one branch for each way a caller can react to a failure.

TpuctlError               base of all expected failures; carries a Diagnostic
├── Usage                 invalid command line or input                         exit 2
│   └── InvalidStack      invalid stack file (may carry several diagnostics)    exit 2
├── Refused               checks failed before anything was sent                exit 65
├── Unreachable           the cloud or a machine did not answer                 exit 69
│   └── Transient         a retry may succeed                                   exit 69
├── NoCapacity            none in the zone now; try another zone or time        exit 75
├── QuotaExceeded         the project's quota is used up                        exit 76
├── Denied                missing permission, billing, API, or a policy         exit 77
│   └── ApiDisabled       the API cannot be asked what exists there             exit 77
├── TimedOut              a time or cost limit was reached                      exit 124
├── NotFound              the named object does not exist                       exit 1
├── Conflict              it exists, but is not ours or not as expected         exit 1
├── RemoteFailed          a command on a machine failed                         exit 1
└── OperationFailed       the cloud accepted the work, then it failed           exit 1
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

__all__ = [
    "ApiDisabled",
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
    """How far a failure reaches; outside this scope, the same request may succeed."""

    ZONE = "zone"
    REGION = "region"
    PROJECT = "project"  # no zone works until something in the project changes
    FATAL = "fatal"  # unknown, or the request is invalid: nothing else is tried


@dataclass(frozen=True)
class Diagnostic:
    """One problem as reported to the user.

    `summary` is a fixed phrase for the kind of problem, `detail` names what is involved, `hint`
    says what to do (each command on its own indented line), `where` is `file:line` or a flag.
    """

    summary: str
    detail: str = ""
    hint: str = ""
    where: str = ""

    @property
    def text(self) -> str:
        """The problem in one text, where no view shows its parts."""
        first = ": ".join(filter(None, (self.where, self.summary, self.detail)))
        return f"{first}\n{self.hint}".rstrip()


class TpuctlError(Exception):
    """An expected failure, shown as its diagnostics without a traceback."""

    exit_code: ClassVar[int] = 1
    scope: Scope = Scope.FATAL

    def __init__(self, summary: str, detail: str = "", *, hint: str = "", where: str = "") -> None:
        self.diagnostics: Sequence[Diagnostic] = (Diagnostic(summary, detail, hint, where),)
        super().__init__(f"{summary}: {detail}" if detail else summary)


class Usage(TpuctlError):
    """Invalid command line or input."""

    exit_code = 2


class InvalidStack(Usage):
    """Invalid stack file; `diagnostics` lists every problem."""

    def __init__(self, diagnostics: Sequence[Diagnostic]) -> None:
        first = diagnostics[0]
        super().__init__(first.summary, first.detail, hint=first.hint, where=first.where)
        self.diagnostics = tuple(diagnostics)


class Refused(TpuctlError):
    """Checks failed before anything was sent."""

    exit_code = 65


class Unreachable(TpuctlError):
    """The cloud or a machine did not answer, or a worker is permanently lost."""

    exit_code = 69


class Transient(Unreachable):
    """A retry of the same call may succeed."""


class NoCapacity(TpuctlError):
    """The zone has no capacity now; another zone or a later attempt may succeed."""

    exit_code = 75


class QuotaExceeded(TpuctlError):
    """The project's quota is used up."""

    exit_code = 76


class Denied(TpuctlError):
    """A missing permission, billing, a disabled API or an organization policy prevents it."""

    exit_code = 77


class ApiDisabled(Denied):
    """The API is not enabled in the project: whether something exists there cannot be asked."""


class TimedOut(TpuctlError):
    """A time or cost limit was reached."""

    exit_code = 124


class NotFound(TpuctlError):
    """The named object does not exist."""


class Conflict(TpuctlError):
    """It exists, but is not ours, or not in the state that the call expects."""


class RemoteFailed(TpuctlError):
    """A command on a machine failed."""


class OperationFailed(TpuctlError):
    """The cloud accepted the work, then it failed."""
