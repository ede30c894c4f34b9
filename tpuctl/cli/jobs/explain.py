"""The `explain` command: why a job failed, or what an error message means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tpuctl.cli import responses
from tpuctl.cli.jobs.follow import find_job
from tpuctl.cli.parameters.options import Job, ProjectId, StackName
from tpuctl.cli.stack.stack import client
from tpuctl.cli.state import State

if TYPE_CHECKING:
    from tpuctl.api.interface import Tpuctl
    from tpuctl.errors import NotFound
    from tpuctl.model.jobs.explanation import Explanation
    from tpuctl.model.jobs.job import JobRecord
    from tpuctl.model.troubleshooting.command_record import CommandRecord

STDIN = "-"


def explain(
    context: typer.Context,
    job: Job = "",
    error: Annotated[
        str | None,
        typer.Option(
            "--error",
            metavar="TEXT",
            help="Explain this error message instead of a job; - reads stdin.",
        ),
    ] = None,
    stack: StackName = "",
    project: ProjectId = "",
) -> None:
    """Explain why a job or the last command failed, where a job hangs, or what an error means.

    Without JOB, explains the last `up`, `run`, or `down` on this machine if it
    failed before a job started; otherwise the running job or, if there is none,
    the latest. Reads the records of all attempts and workers from the bucket,
    so it works after the machines are deleted. Exits with 0 regardless of the
    job's result. With --error, or with - in place of JOB, queries no cloud, and
    exits with 1 if the error is unknown.

    Example: tpuctl explain --error 'There is no more capacity in the zone'
    """
    from tpuctl.view.jobs.explanation import show_explanation

    state: State = context.obj
    tpuctl = client(context, stack, project) if stack or project else state.tpuctl()
    if error is not None or job == STDIN:
        _explain_text(state, tpuctl, job, error)
        return

    failure = None if job else _last_failure(tpuctl)
    if failure is not None:
        _explain_command(state, tpuctl, failure)
        return

    async def work() -> Explanation:
        record = await _job(state, tpuctl, job)
        state.jobs.append(record.id)
        return await tpuctl.explain(record)

    explanation = state.wait_for(work())
    state.answer(
        lambda: responses.jobs.JobExplanation.of(explanation, state.as_typed),
        lambda: show_explanation(explanation, state.as_typed),
    )


def _last_failure(tpuctl: Tpuctl) -> CommandRecord | None:
    from tpuctl.model.troubleshooting.command_record import last_failure

    return last_failure(tpuctl.cloud_name, tpuctl.project, tpuctl.stack.name)


def _explain_command(state: State, tpuctl: Tpuctl, failure: CommandRecord) -> None:
    """Explain a command by the error that it reported."""
    from dataclasses import replace

    from tpuctl.errors import NotFound
    from tpuctl.model.troubleshooting.pasted_error import explain_text
    from tpuctl.view.jobs.explanation import show_command

    diagnostics = [state.with_command_prefix(diagnostic) for diagnostic in failure.diagnostics]
    texts = (f"{diagnostic.summary}: {diagnostic.detail}" for diagnostic in diagnostics)
    try:
        meaning = explain_text("\n".join(texts), _around(tpuctl))
        meaning = replace(meaning, hint=state.as_typed(meaning.hint))
    except NotFound:
        meaning = None
    jobs_command = "" if state.quiet else state.typed("jobs")
    state.answer(
        lambda: responses.jobs.CommandExplanation.from_object(
            failure, errors=diagnostics, meaning=meaning
        ),
        lambda: show_command(failure, diagnostics, meaning, jobs_command),
    )


def _explain_text(state: State, tpuctl: Tpuctl, job: str, error: str | None) -> None:
    from dataclasses import replace
    from pathlib import Path

    from tpuctl.errors import Usage
    from tpuctl.model.scripts.local_module import SUMMARY, find_module, module_hint
    from tpuctl.model.troubleshooting.pasted_error import explain_text
    from tpuctl.view.jobs.explanation import show_message

    if error is not None and job:
        raise Usage(
            "Conflicting options",
            f"--error explains a message, {job} is a job",
            hint="Use one of them:\n    tpuctl explain --error TEXT\n    tpuctl explain JOB",
            where="--error",
        )
    text = _typed_in() if error in (None, STDIN) else str(error)
    if not text.strip():
        raise Usage(
            "Missing text",
            "there is no error message to explain",
            hint="Pass the error in quotes, or pipe it to stdin:\n"
            "    tpuctl explain --error 'There is no more capacity'\n"
            "    tpuctl explain - < error.txt",
            where="--error",
        )
    match = explain_text(text, _around(tpuctl))
    module = find_module(match.line, Path()) if match.name == "import" else None
    if module is not None:
        cause, hint = module_hint(module, Path())
        match = replace(match, name="own-module", summary=SUMMARY, cause=cause, hint=hint)
    message = replace(match, hint=state.as_typed(match.hint))
    state.answer(
        lambda: responses.jobs.MessageExplanation.model_validate(message),
        lambda: show_message(message),
    )


def _typed_in() -> str:
    import sys

    if sys.stdin.isatty():
        print("Paste the error, then press Enter and Ctrl-D.", file=sys.stderr)
    return sys.stdin.buffer.read().decode(errors="replace")


def _around(tpuctl: Tpuctl) -> dict[str, str]:
    """The stack's names, for commands in hints; empty without a stack file."""
    from tpuctl.errors import TpuctlError

    try:
        stack = tpuctl.stack
        return {"project": stack.project, "zone": stack.zone, "type": stack.file.tpu.type}
    except (TpuctlError, OSError):
        return {}


async def _job(state: State, tpuctl: Tpuctl, job: str) -> JobRecord:
    """Raises NotFound; if the stack has no jobs, with advice on its state."""
    from tpuctl.errors import NotFound

    try:
        return await find_job(state, tpuctl, job)
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
    lines = lines or ["The machines are up. Submit a job:\n    tpuctl run SCRIPT"]
    lines.append(
        "To explain an error message, for example:\n"
        "    tpuctl explain --error 'There is no more capacity'"
    )
    return NotFound(
        "No jobs",
        f"no job was submitted to stack {tpuctl.stack.name}",
        hint="\n".join(lines),
    )
