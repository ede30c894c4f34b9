"""The `doctor` command: check all prerequisites of `up` and `run`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tpuctl.cli import responses
from tpuctl.cli.parameters.options import project_option
from tpuctl.cli.state import State

if TYPE_CHECKING:
    from tpuctl.model.troubleshooting.diagnosis import Diagnosis, Finding


def doctor(
    context: typer.Context,
    project: Annotated[str, project_option("Check this project, without a stack file.")] = "",
    role: Annotated[
        bool,
        typer.Option("--role", help="Print the custom IAM role that a pipeline's account needs."),
    ] = False,
) -> int:
    """Check everything that `up` and `run` need, and show how to fix what is missing.

    Checks this machine, the stack file, credentials, project, billing, APIs,
    permissions, network, organization policies and quota, and changes nothing.
    Exits with 0 if there are no problems, otherwise with the exit code of the
    most fundamental one.

    Example: tpuctl doctor
    """
    state: State = context.obj
    if role:
        return _role(state, project)
    from tpuctl.flows.doctor.diagnose import diagnose
    from tpuctl.model.troubleshooting.diagnosis import CheckState
    from tpuctl.view.diagnosis import show_finding, summary
    from tpuctl.view.terminal.tables import console

    out = console(no_color=state.no_color, width=100)
    tpuctl = state.tpuctl(name="any" if project else "", project=project)

    def tell(finding: Finding) -> None:
        if not (state.json or (state.quiet and finding.state is CheckState.OK)):
            state.view.close()
            show_finding(_as_typed(state, finding), out)

    diagnosis, is_up = state.wait_for(diagnose(tpuctl, tell))
    following = _following(state, diagnosis, project, is_up=is_up)

    def show() -> None:
        state.note(f"\n{summary(diagnosis)}")
        state.suggest(following)

    findings = [_as_typed(state, finding) for finding in diagnosis.findings]
    state.answer(lambda: responses.checks.Diagnosis(checks=findings, next=following), show)
    return diagnosis.exit_code


def _as_typed(state: State, finding: Finding) -> Finding:
    from dataclasses import replace

    return replace(finding, hint=state.as_typed(finding.hint))


def _following(state: State, diagnosis: Diagnosis, project: str, *, is_up: bool) -> str:
    """The next command: the fix of the most basic problem, or the next step."""
    if diagnosis.problems:
        first = _as_typed(state, diagnosis.problems[0])
        return first.command or f"{state.command_prefix} doctor"
    if project:
        return f"{state.cloud_prefix} init"
    return (
        f"{state.command_prefix} run {state.guess_script()}"
        if is_up
        else f"{state.command_prefix} up"
    )


def _role(state: State, project: str) -> int:
    from tpuctl.errors import Usage
    from tpuctl.flows.doctor.diagnose import role_of
    from tpuctl.view.diagnosis import role_text

    if project:
        raise Usage(
            "Conflicting options",
            "the role depends on the stack file, which --project replaces",
            hint="Remove --project:\n    tpuctl doctor --role",
            where="--project",
        )
    custom_role = role_of(state.tpuctl())
    state.answer(
        lambda: responses.checks.Role.from_object(custom_role, role=custom_role),
        lambda: print(role_text(custom_role)),
    )
    return 0
