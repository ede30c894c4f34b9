"""The command that says why a job ended, or what an error means: explain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tpuctl.cli.follow import PANEL
from tpuctl.cli.options import Job
from tpuctl.cli.state import State

if TYPE_CHECKING:
    from tpuctl.api.interface import Tpuctl
    from tpuctl.errors import NotFound
    from tpuctl.model.explanation import Explanation
    from tpuctl.model.job import JobRecord

__all__ = ["register"]

STDIN = "-"


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=PANEL)(explain)


def explain(
    context: typer.Context,
    job: Job = "",
    error: Annotated[
        str | None,
        typer.Option(
            "--error",
            metavar="TEXT",
            help="Instead of a job, an error message from anywhere; - reads it from stdin.",
        ),
    ] = None,
) -> None:
    """Say why a job failed, or what an error means: what happened, why, the command that mends it.

    All attempts and workers are looked at, in the bucket: also after the machines are gone. Exit
    code 0 when that could be done, whatever became of the job. With --error, or - in place of a
    job, nothing is asked of any cloud: exit code 0 for an error that is known, 1 for another.

    Example: tpuctl explain --error 'There is no more capacity in the zone'
    """
    from tpuctl.errors import Diagnostic
    from tpuctl.view.explanation import explanation_data, show_explanation

    state: State = context.obj
    tpuctl = state.tpuctl()
    if error is not None or job == STDIN:
        _explain_text(state, tpuctl, job, error)
        return

    async def work() -> Explanation:
        return await tpuctl.explain(await _job(tpuctl, job))

    explanation = state.wait_for(work())

    def as_typed(hint: str) -> str:
        return state.with_command_prefix(Diagnostic("", hint=hint)).hint

    state.answer(
        explanation_data(explanation, as_typed), lambda: show_explanation(explanation, as_typed)
    )


def _explain_text(state: State, tpuctl: Tpuctl, job: str, error: str | None) -> None:
    from tpuctl.errors import Diagnostic, Usage
    from tpuctl.model.pasted_error import explain_text
    from tpuctl.view.explanation import message_data, show_message

    if error is not None and job:
        raise Usage(
            "Conflicting options",
            f"--error explains a text, {job} is a job",
            hint="Ask for one of them:\n    tpuctl explain --error TEXT\n    tpuctl explain JOB",
            where="--error",
        )
    text = _typed_in() if error in (None, STDIN) else str(error)
    if not text.strip():
        raise Usage(
            "No text",
            "there is nothing to explain",
            hint="Paste the error between quotes, or send it to stdin:\n"
            "    tpuctl explain --error 'There is no more capacity'\n"
            "    tpuctl explain - < error.txt",
            where="--error",
        )
    match = explain_text(text, _around(tpuctl))
    hint = state.with_command_prefix(Diagnostic("", hint=match.hint)).hint
    state.answer(message_data(match, hint), lambda: show_message(match, hint))


def _typed_in() -> str:
    import sys

    if sys.stdin.isatty():
        print("Paste the error, then press Enter and Ctrl-D.", file=sys.stderr)
    return sys.stdin.buffer.read().decode(errors="replace")


def _around(tpuctl: Tpuctl) -> dict[str, str]:
    """The stack's names, for the commands to tell; none where there is no stack file."""
    from tpuctl.errors import TpuctlError

    try:
        stack = tpuctl.stack
        return {"project": stack.project, "zone": stack.zone, "type": stack.file.tpu.type}
    except (TpuctlError, OSError):
        return {}


async def _job(tpuctl: Tpuctl, job: str) -> JobRecord:
    """Raises NotFound; where there is no job at all, with how the stack is and what to do."""
    from tpuctl.errors import NotFound

    try:
        return await tpuctl.job(job)
    except NotFound as error:
        if job:
            raise
        raise await _without_jobs(tpuctl, error) from error


async def _without_jobs(tpuctl: Tpuctl, error: NotFound) -> NotFound:
    from tpuctl.errors import NotFound, TpuctlError

    try:
        advice = (await tpuctl.status()).advice
    except TpuctlError:
        return error
    lines = [f"{advised.text}\n    tpuctl {advised.command}" for advised in advice]
    lines = lines or ["Its machines are there. Submit something with\n    tpuctl run SCRIPT"]
    lines.append(
        "What a message of `up` or of anything else means:\n    tpuctl explain --error TEXT"
    )
    return NotFound(
        "No job yet",
        f"nothing was submitted to stack {tpuctl.stack.name}, so there is none to explain",
        hint="\n".join(lines),
    )
