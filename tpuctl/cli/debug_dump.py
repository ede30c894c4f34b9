"""The `debug-dump` command: an archive to attach to a bug report."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from tpuctl.cli import responses
from tpuctl.cli.parameters.options import Job
from tpuctl.cli.state import State


def debug_dump(
    context: typer.Context,
    job: Job = "",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write (default: tpuctl-debug-DATE.zip)."),
    ] = None,
) -> None:
    """Write an archive to attach to a bug report, after showing what is in it.

    It contains versions, the stack file, the plan, the result of `doctor`, the
    calls of the last commands with their answers, and the records and logs of
    the running or latest job. Secrets, e-mail addresses, IP addresses and
    projects are replaced by placeholders such as account-1. Parts that cannot
    be read within half a minute are left out. Changes nothing, sends nothing,
    and never overwrites a file.

    Example: tpuctl debug-dump --output report.zip
    """
    from tpuctl.errors import Usage
    from tpuctl.flows.doctor.debug_dump import Views, collect
    from tpuctl.flows.doctor.dump_files import require_absent, write_dump
    from tpuctl.model.events import ignore
    from tpuctl.view.debug_dump import show_contents

    state: State = context.obj
    if output == Path("-"):
        raise Usage(
            "Missing file name",
            "the archive is written to a file, not to stdout",
            hint="Pass one:\n    tpuctl debug-dump --output FILE",
            where="--output",
        )
    file = output or Path(f"tpuctl-debug-{datetime.now():%Y%m%d-%H%M%S}.zip")
    require_absent(file)
    state.announce("Collecting what a bug report needs")
    tpuctl = state.tpuctl(is_recorded=False)
    tpuctl.emit = ignore
    views = Views(
        plan=lambda prepared: responses.stacks.Plan.model_validate(prepared).as_json(),
        diagnosis=lambda diagnosis: responses.checks.Diagnosis(
            checks=diagnosis.findings, next=""
        ).as_json()["checks"],
    )
    dump = state.wait_for(collect(tpuctl, views, job))
    state.close_view()
    if not (state.json or state.quiet):
        show_contents(dump)
    state.confirm(f"Write {file}?")
    write_dump(dump, file)

    text = f"Wrote {file}. Read it before you attach it to a report."
    state.answer(
        lambda: responses.checks.DebugDump.from_object(dump, file=file), lambda: state.note(text)
    )
