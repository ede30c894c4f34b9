"""What a pipeline's steps call: start a job, follow it for a while, sum it up."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from tpuctl.cli.arguments import duration
from tpuctl.cli.options import Job
from tpuctl.cli.script_arguments import AFTER_DASHES, parse_program
from tpuctl.cli.state import State
from tpuctl.errors import Usage

__all__ = ["follow", "start", "summary"]


Output = Annotated[
    Path | None,
    typer.Option("--output", help="A file to add JOB_ID, JOB_STATE and such to, as NAME=VALUE."),
]


class SummaryFormat(StrEnum):
    markdown = "markdown"
    github = "github"


def start(
    context: typer.Context,
    script: Annotated[
        str | None,
        typer.Argument(metavar="[SCRIPT]", help="As of `tpuctl run`.", show_default=False),
    ] = None,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGUMENTS...]", help="The script's own.")
    ] = None,
    module: Annotated[
        str | None, typer.Option("--module", "-m", metavar="NAME", help="A module instead.")
    ] = None,
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="DURATION", help="End the job after this, with 124.")
    ] = "",
    output: Output = None,
) -> int:
    """Start a job, as `run --detach` does, and note its id, also where it fails at once.

    Adds JOB_ID to --output as soon as there is one; the step that follows it
    needs nothing else.

    Example: tpuctl ci start --output "$GITHUB_OUTPUT" train.py -- --steps 9
    """
    state: State = context.obj
    state.command = "ci start"
    seconds = duration(timeout, "--timeout")
    after = context.meta[AFTER_DASHES]
    program, form, words = parse_program(script, module, arguments or (), after, "ci start")
    tpuctl = state.tpuctl()

    async def work() -> int:
        record = await tpuctl.start(tpuctl.submission(program, words, form=form, timeout=seconds))
        state.data = {"job": record.id, "output": record.output}
        _write_variables(output, JOB_ID=record.id)
        failed = await tpuctl.wait_until_running(record)
        if failed is not None:
            _write_variables(output, JOB_STATE="ended", JOB_EXIT_CODE=failed)
            return failed
        follow = f"{state.command_prefix} ci follow {record.id}"
        state.answer(state.data, lambda: print(f"{record.id}\n\nNext:\n    {follow}"))
        return 0

    return state.wait_for(work())


def follow(
    context: typer.Context,
    job: Job = "",
    length: Annotated[
        str,
        typer.Option("--for", metavar="DURATION", help="No longer than this, then leave it be."),
    ] = "",
    start_position: Annotated[
        str, typer.Option("--from", metavar="PLACE", help="Where the last step stopped: JOB_NEXT.")
    ] = "",
    output: Output = None,
) -> int:
    """Follow a job for as long as a step may take; the next step goes on.

    Exit code 0 while the job runs, with JOB_STATE=running, also where the
    sign-in expires; else the job's own, with JOB_STATE=ended. Unlike `wait
    --timeout` this tells a job's 124 from the step's end.

    Example: tpuctl ci follow --for 50m --output "$GITHUB_OUTPUT"
    """
    import asyncio

    from tpuctl.cli.follow import remember
    from tpuctl.cloud.signing import is_signed_out
    from tpuctl.errors import Diagnostic, TpuctlError
    from tpuctl.model.events import Event, LogChunk, Note, WarningIssued
    from tpuctl.model.log_range import LogRange

    state: State = context.obj
    state.command = "ci follow"
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
            tpuctl.emit(Note(f"Job {record.id} goes on; so does the next step."))
        except TpuctlError as error:
            if seconds is None or not is_signed_out(error):
                raise
            diagnostic = error.diagnostics[0]
            detail = f"{diagnostic.detail}\nJob {record.id} goes on; the next step signs in anew"
            tpuctl.emit(
                WarningIssued(
                    Diagnostic(
                        "The sign-in expired",
                        detail,
                        hint="Nothing is to be done, where a later step waits for the job; "
                        "by hand:\n"
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
            f"--from cannot be {text}",
            hint="It is what JOB_NEXT was at the end of the step before, such as 1:5120.",
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
            help="markdown; or github: an annotation of the workflow's run.",
            show_choices=False,
        ),
    ] = SummaryFormat.markdown,
    link: Annotated[
        str, typer.Option("--link", metavar="URL", help="Where the whole report is.")
    ] = "",
) -> None:
    """Sum up a job in Markdown: result, cause, cost, duration, curves.

    Works after the machines are gone. Exit code 0 whatever became of the job.

    Example: tpuctl ci summary >> "$GITHUB_STEP_SUMMARY"
    """
    from tpuctl.view.github_annotations import run_annotation
    from tpuctl.view.report import report_data
    from tpuctl.view.summary import markdown

    state: State = context.obj
    state.command = "ci summary"
    tpuctl = state.tpuctl()

    async def work() -> Any:
        return await tpuctl.report(await tpuctl.job(job))

    run_report = state.wait_for(work())
    if format is SummaryFormat.github:
        state.answer(report_data(run_report), lambda: print(run_annotation(run_report)))
        return
    text = markdown(run_report, link=link, command_prefix=state.command_prefix)
    state.answer({**report_data(run_report), "markdown": text}, lambda: print(text, end=""))
