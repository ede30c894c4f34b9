"""Commands for pipeline steps: start a job, follow it for a limited time, summarize it."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from tpuctl.cli import responses
from tpuctl.cli.jobs.script_arguments import Module, ScriptArguments, parse_program
from tpuctl.cli.parameters.arguments import duration
from tpuctl.cli.parameters.options import Job
from tpuctl.cli.state import State
from tpuctl.errors import Usage

Output = Annotated[
    Path | None,
    typer.Option("--output", help="File to append JOB_ID, JOB_STATE and so on to, as NAME=VALUE."),
]


class SummaryFormat(StrEnum):
    markdown = "markdown"
    github = "github"


def start(
    context: typer.Context,
    script: Annotated[
        str | None,
        typer.Argument(metavar="[SCRIPT]", help="Script to run.", show_default=False),
    ] = None,
    arguments: ScriptArguments = None,
    module: Module = None,
    timeout: Annotated[
        str,
        typer.Option(
            "--timeout", metavar="DURATION", help="Stop the job after DURATION; exit code 124."
        ),
    ] = "",
    output: Output = None,
) -> int:
    """Start a job like `run --detach`, and write its id to a file, even if it fails early.

    Appends JOB_ID to --output as soon as the job is submitted; the step that
    follows the job needs nothing else.

    Example: tpuctl ci start --output "$GITHUB_OUTPUT" train.py -- --steps 9
    """
    state: State = context.obj
    seconds = duration(timeout, "--timeout")
    program, form, words = parse_program(context, script, module, arguments, "ci start")
    tpuctl = state.tpuctl()

    async def work() -> int:
        record = await tpuctl.start(tpuctl.submission(program, words, form=form, timeout=seconds))
        state.jobs.append(record.id)
        state.data = {"job": record.id, "output": record.output}
        _write_variables(output, JOB_ID=record.id)
        failed = await tpuctl.wait_until_running(record)
        if failed is not None:
            _write_variables(output, JOB_STATE="ended", JOB_EXIT_CODE=failed)
            return failed
        follow = f"{state.command_prefix} ci follow {record.id}"
        state.answer(state.data, lambda: _show_started(state, record.id, follow))
        return 0

    return state.wait_for(work())


def _show_started(state: State, job: str, follow: str) -> None:
    print(job)
    state.suggest(follow)


def follow(
    context: typer.Context,
    job: Job = "",
    length: Annotated[
        str,
        typer.Option(
            "--for", metavar="DURATION", help="Stop following after DURATION; the job continues."
        ),
    ] = "",
    start_position: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="ATTEMPT:OFFSET",
            help="Resume where the last step stopped: its JOB_NEXT.",
        ),
    ] = "",
    output: Output = None,
) -> int:
    """Follow a job for as long as a step may run; the next step resumes.

    Exits with 0 and JOB_STATE=running if the job still runs or the
    credentials expire, otherwise with the job's exit code and
    JOB_STATE=ended. Unlike with `wait --timeout`, exit code 124 is always
    the job's.

    Example: tpuctl ci follow --for 50m --output "$GITHUB_OUTPUT"
    """
    import asyncio

    from tpuctl.cli.jobs.follow import remember
    from tpuctl.cloud.credential_errors import is_signed_out
    from tpuctl.errors import Diagnostic, TpuctlError
    from tpuctl.model.events import Event, LogChunk, Note, WarningIssued
    from tpuctl.model.logs.log_range import LogRange

    state: State = context.obj
    seconds = duration(length, "--for")
    attempt, offset = _parse_position(start_position)
    tpuctl = state.tpuctl()
    position = [attempt or 1, offset]

    async def work() -> int:
        record = await tpuctl.job(job, attempt)
        position[0] = record.attempt
        forward = remember(state, record, tpuctl.emit)

        def count(event: Event) -> None:
            if isinstance(event, LogChunk):
                position[:] = event.attempt, event.offset + len(event.data)
            forward(event)

        tpuctl.emit = count
        following = tpuctl.follow(record, part=LogRange(offset))
        try:
            code = await asyncio.wait_for(following, seconds)
        except TimeoutError:
            tpuctl.emit(
                Note(f"Job {record.id} is still running; the next step resumes following it.")
            )
        except TpuctlError as error:
            if seconds is None or not is_signed_out(error):
                raise
            diagnostic = error.diagnostics[0]
            running = f"Job {record.id} is still running; the next step signs in again"
            detail = f"{diagnostic.detail}\n{running}"
            tpuctl.emit(
                WarningIssued(
                    Diagnostic(
                        "Credentials expired",
                        detail,
                        hint="No action is needed if a later step waits for the job. "
                        "To wait manually:\n"
                        "    tpuctl wait",
                    )
                )
            )
        else:
            _write_variables(output, JOB_STATE="ended", JOB_EXIT_CODE=code)
            return code
        _write_variables(output, JOB_STATE="running", JOB_NEXT=f"{position[0]}:{position[1]}")
        return 0

    return state.wait_for(work())


def _parse_position(text: str) -> tuple[int | None, int]:
    """An attempt and a byte of its log."""
    if not text:
        return None, 0
    match = re.fullmatch(r"([1-9]\d{0,8}):(\d{1,18})", text)
    if match is None:
        raise Usage(
            "Invalid value",
            f"--from: {text} is not ATTEMPT:OFFSET",
            hint="Use JOB_NEXT of the previous step, such as 1:5120.",
            where="--from",
        )
    return int(match[1]), int(match[2])


def _write_variables(output: Path | None, **values: object) -> None:
    if output is None:
        return
    with output.open("a", encoding="utf-8") as file:
        for name, value in values.items():
            file.write(f"{name}={value}\n")


def summary(
    context: typer.Context,
    job: Job = "",
    format: Annotated[
        SummaryFormat,
        typer.Option(
            "--format",
            help="markdown, or github for a workflow annotation.",
            show_choices=False,
        ),
    ] = SummaryFormat.markdown,
    link: Annotated[
        str, typer.Option("--link", metavar="URL", help="URL of the full report.")
    ] = "",
) -> None:
    """Summarize a job in Markdown: result, cause, cost, duration, curves.

    Works after the machines are deleted. Exits with 0 regardless of the job's result.

    Example: tpuctl ci summary >> "$GITHUB_STEP_SUMMARY"
    """
    from tpuctl.view.ci.github_annotations import run_annotation
    from tpuctl.view.ci.summary import markdown

    state: State = context.obj
    tpuctl = state.tpuctl()

    async def work() -> Any:
        record = await tpuctl.job(job)
        state.jobs.append(record.id)
        return await tpuctl.report(record)

    run_report = state.wait_for(work())
    if format is SummaryFormat.github:
        state.answer(
            lambda: responses.jobs.JobReport.model_validate(run_report),
            lambda: print(run_annotation(run_report)),
        )
        return
    text = markdown(run_report, link=link, command_prefix=state.command_prefix)
    state.answer(
        lambda: responses.jobs.JobReport.from_object(run_report, markdown=text),
        lambda: print(text, end=""),
    )
