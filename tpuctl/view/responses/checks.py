"""Answers of `check` and `doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator

from tpuctl.model.role import Grant, RoleGroup
from tpuctl.view.responses.base import ABSENT, Response, Truth, source

if TYPE_CHECKING:
    from tpuctl.model.role import CustomRole

__all__ = ["CheckedScripts", "CheckedStack", "Diagnosis", "Role", "Rules"]


class CheckedStack(Response):
    """The checked stack file."""

    stack: str
    type: str
    zone: str
    runtime: str
    bucket: str
    price: str


class CheckFinding(Response):
    """A violation of a rule; lines and columns count from 1."""

    code: str
    severity: str
    file: Path = source("path")
    line: int
    column: Annotated[int, AfterValidator(lambda column: column + 1)]
    message: str
    hint: str
    fixable: Truth = source("edits")


class CheckNote(Response):
    file: Path = source("path")
    line: int
    message: str


class CheckedScripts(Response):
    """The findings in scripts; the stack's keys are absent without a stack file."""

    stack: str = ABSENT
    type: str = ABSENT
    zone: str = ABSENT
    runtime: str = ABSENT
    bucket: str = ABSENT
    price: str = ABSENT
    target: str
    files: list[Path]
    findings: list[CheckFinding]
    suppressed: int
    notes: list[CheckNote]


class Rule(Response):
    code: str
    name: str
    severity: str
    summary: str
    rationale: str
    bad: str
    good: str


class Rules(Response):
    """Rules of the check, explained."""

    rules: list[Rule]


class Finding(Response):
    """The result of one check of `doctor`."""

    check: str
    state: str
    message: str
    hint: str
    command: str
    requires: str = source("root")


class Diagnosis(Response):
    """All checks, in the order to fix them."""

    checks: list[Finding]
    next: str


class GcloudRole(Response):
    title: str
    description: str
    stage: str
    includedPermissions: list[str] = source("permissions")


class Role(Response):
    """A custom role; `role` is what `gcloud iam roles create --file` takes."""

    id: str
    project: str
    role: GcloudRole
    groups: list[RoleGroup]
    optional_permissions: list[str]
    grants: list[Grant]

    @classmethod
    def of(cls, custom_role: CustomRole) -> Role:
        return cls.model_validate({**vars(custom_role), "role": custom_role})
