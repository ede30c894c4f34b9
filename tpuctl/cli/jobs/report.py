"""Commands that report on jobs: `jobs show` and `jobs compare`, `report` as HTML."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpuctl.cli import responses
from tpuctl.cli.completion.candidates import complete_jobs
from tpuctl.cli.jobs.follow import find_job
from tpuctl.cli.parameters.options import Job, ProjectId, StackName
from tpuctl.cli.stack.stack import client
from tpuctl.cli.state import State

if TYPE_CHECKING:
    from tpuctl.api.interface import Tpuctl
    from tpuctl.model.jobs.report import RunReport


def show(
    context: typer.Context, job: Job = "", stack: StackName = "", project: ProjectId = ""
) -> None:
    """Show one job: state, attempts, cost, and its loss and speed as curves.

    Curves come from log lines that are a JSON object with a step and numbers.

    Example: tpuctl jobs show
    """
    from tpuctl.view.jobs.run import print_run

    state: State = context.obj
    state.command = "jobs show"
    run_report = _load_report(state, client(context, stack, project), job)
    state.answer(
        lambda: responses.jobs.JobReport.model_validate(run_report),
        lambda: print_run(run_report),
    )
    is_running = run_report.explanation.status.exit_code is None
    command = "logs -f" if is_running else "report"
    state.suggest(state.typed(f"{command} {run_report.record.id}"))


def compare(
    context: typer.Context,
    jobs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="JOB JOB...",
            help="Ids of the jobs, or their last words.",
            show_default=False,
            autocompletion=complete_jobs,
        ),
    ] = None,
    shows_all: Annotated[
        bool, typer.Option("--all", help="Show also what is the same for all jobs.")
    ] = False,
    stack: StackName = "",
    project: ProjectId = "",
) -> None:
    """Compare jobs: arguments, files, versions, machines, time, cost, and metrics at equal steps.

    Metrics come from log lines that are a JSON object with a step and numbers. Works after the
    machines are deleted.

    Example: tpuctl jobs compare maple otter
    """
    from tpuctl.view.jobs.comparison import print_comparison

    state: State = context.obj
    tpuctl = client(context, stack, project)
    comparison = state.wait_for(tpuctl.compare(jobs or ()))
    state.jobs += comparison.jobs
    state.answer(
        lambda: responses.jobs.Comparison.model_validate(comparison),
        lambda: print_comparison(comparison, shows_all=shows_all, is_free=state.is_free),
    )


def report(
    context: typer.Context,
    job: Job = "",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write, - for stdout (default: JOB.html)."),
    ] = None,
    browser: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    stack: StackName = "",
    project: ProjectId = "",
) -> None:
    """Write an HTML report of a job: curves, cost, attempts, installed packages, bundle.

    A single self-contained HTML file without scripts, to archive, send or attach in CI. Works
    after the machines are deleted.

    Example: tpuctl report --open
    """
    from tpuctl.errors import Usage
    from tpuctl.view.jobs.report import page

    state: State = context.obj
    is_stdout = output == Path("-")
    if is_stdout and (browser or state.json):
        other = "--open" if browser else "--json"
        raise Usage(
            "Conflicting options",
            f"{other} needs a file; --output - writes to stdout",
            hint="Pass a file to --output.",
            where="--output",
        )
    run_report = _load_report(state, client(context, stack, project), job)
    if is_stdout:
        state.answer(None, lambda: print(page(run_report), end=""))
        return
    file = output or Path(f"{run_report.record.id}.html")
    file.write_text(page(run_report), "utf-8")  # overwrites a report of the same job
    if browser:
        from tpuctl.cli.browser import open_page

        if not open_page(file.absolute().as_uri()):
            print("Could not open a browser.", file=sys.stderr)
    state.answer(
        lambda: responses.jobs.JobReport.from_object(run_report, file=file), lambda: print(file)
    )


def _load_report(state: State, tpuctl: Tpuctl, job: str) -> RunReport:
    async def work() -> RunReport:
        record = await find_job(state, tpuctl, job)
        state.jobs.append(record.id)
        return await tpuctl.report(record)

    return state.wait_for(work())
