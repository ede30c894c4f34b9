"""Commands that look back at a run: `jobs show` in the terminal, `report` as a page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpuctl.cli.follow import PANEL
from tpuctl.cli.options import Job
from tpuctl.cli.state import State

if TYPE_CHECKING:
    from tpuctl.model.report import RunReport

__all__ = ["register", "show"]


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=PANEL)(report)


def show(context: typer.Context, job: Job = "") -> None:
    """Show one job: state, attempts, cost, and how its loss and speed went, drawn as curves.

    Curves are made of lines of the log that are one JSON object with a step and numbers.

    Example: tpuctl jobs show
    """
    from tpuctl.view.report import report_data
    from tpuctl.view.run import print_run

    state: State = context.obj
    state.command = "jobs show"
    run_report = _load_report(state, job)
    state.answer(report_data(run_report), lambda: print_run(run_report, state.command_prefix))


def report(
    context: typer.Context,
    job: Job = "",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Where to write it, - for stdout; else JOB.html."),
    ] = None,
    browser: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
) -> None:
    """Write a page about a run: curves, cost, attempts, what was installed, the exact bundle.

    One file of HTML without scripts, which fetches nothing: to keep, to send, to attach in CI.
    Works after the machines are gone.

    Example: tpuctl report --open
    """
    from tpuctl.errors import Usage
    from tpuctl.view.report import page, report_data

    state: State = context.obj
    is_stdout = output == Path("-")
    if is_stdout and (browser or state.json):
        other = "--open" if browser else "--json"
        raise Usage(
            "Conflicting options",
            f"{other} needs a file; --output - writes to stdout",
            hint="Name a file with --output.",
            where="--output",
        )
    run_report = _load_report(state, job)
    if is_stdout:
        state.answer(None, lambda: print(page(run_report), end=""))
        return
    file = output or Path(f"{run_report.record.id}.html")
    file.write_text(page(run_report), "utf-8")  # written anew: it tells the same run
    if browser:
        import webbrowser

        if not webbrowser.open(file.absolute().as_uri()):
            print("No browser could be opened.", file=sys.stderr)
    state.answer({**report_data(run_report), "file": str(file)}, lambda: print(file))


def _load_report(state: State, job: str) -> RunReport:
    tpuctl = state.tpuctl()

    async def work() -> RunReport:
        return await tpuctl.report(await tpuctl.job(job))

    return state.wait_for(work())
