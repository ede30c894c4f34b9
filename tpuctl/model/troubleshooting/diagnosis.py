"""The findings of `doctor`: one per prerequisite of `up` and `run`, with the fix."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from tpuctl.errors import TpuctlError

SETTING = re.compile(r"[a-z_]+: ")  # a stack file setting, such as tpu: {kind: vm}
DENIED = 77  # permission, billing, an API or an organization policy: docs/reference/exit-codes.md


class CheckState(StrEnum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    `hint` is like a diagnostic's: what to do, each command on its own indented line. `root` is the
    check whose failure kept this one from being asked.
    """

    check: str
    state: CheckState
    message: str
    hint: str = ""
    exit_code: int = 0
    root: str = ""

    @property
    def command(self) -> str:
        """The first command in the hint, ignoring stack file settings."""
        lines = [line.strip() for line in self.hint.splitlines() if line.startswith("    ")]
        return next((line for line in lines if not SETTING.match(line)), "")


@dataclass(frozen=True)
class Diagnosis:
    """All findings, most fundamental first."""

    findings: tuple[Finding, ...]

    @property
    def problems(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.state is CheckState.PROBLEM)

    @property
    def exit_code(self) -> int:
        """The exit code of the most fundamental problem; 0 if there is none."""
        return self.problems[0].exit_code or 1 if self.problems else 0


def failed(check: str, error: TpuctlError, exit_code: int = 0) -> Finding:
    """A problem with the error's message."""
    first = error.diagnostics[0]
    message = f"{first.summary}: {first.detail}" if first.detail else first.summary
    if len(error.diagnostics) > 1:
        message += f" (and {len(error.diagnostics) - 1} more)"
    if first.where:
        message = f"{first.where}: {message}"
    return Finding(check, CheckState.PROBLEM, message, first.hint, exit_code or error.exit_code)
