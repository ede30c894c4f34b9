"""The `rehearse` command: run a few steps of a script on this machine."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from tpuctl.cli import responses
from tpuctl.cli.jobs.script_arguments import (
    AfterDashes,
    JobModule,
    JobPython,
    NoCheck,
    parse_program,
)
from tpuctl.cli.parameters.arguments import duration
from tpuctl.cli.parameters.options import type_option
from tpuctl.cli.state import Interrupted, State
from tpuctl.errors import Usage

if TYPE_CHECKING:
    from tpuctl.api.interface import Tpuctl
    from tpuctl.flows.jobs.submission import Submission
    from tpuctl.model.events import Emit, Event
    from tpuctl.model.jobs.job import JobKind
    from tpuctl.preflight.rehearsal.rehearsal_report import Rehearsal

FAILED = 1


def register(app: typer.Typer) -> None:
    app.command(cls=AfterDashes)(rehearse)


def rehearse(
    context: typer.Context,
    script: Annotated[
        str | None, typer.Argument(help="Script, as for run.", show_default=False)
    ] = None,
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Arguments passed to the script, after --.")
    ] = None,
    module: JobModule = None,
    steps: Annotated[
        int | None,
        typer.Option("--steps", metavar="N", min=1, help="Stop the script after N steps. [8]"),
    ] = None,
    timeout: Annotated[
        str,
        typer.Option(
            "--timeout",
            metavar="DURATION",
            help="Stop each of the two runs after 90s or 30m. [10m]",
        ),
    ] = "",
    sample: Annotated[
        list[str] | None,
        typer.Option(
            "--sample",
            metavar="DIR=gs://PREFIX",
            help="Let the script read a folder as that prefix.",
        ),
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option("--secret", metavar="NAME[=SOURCE]", help="Also pass a secret, as for run."),
    ] = None,
    tensorflow: Annotated[
        str,
        typer.Option(
            "--tensorflow", metavar="VERSION", help="TensorFlow version (default: the runtime's)."
        ),
    ] = "",
    python: JobPython = "",
    no_check: NoCheck = False,
    compile_it: Annotated[
        bool,
        typer.Option(
            "--compile",
            help="Compile for the TPU instead of running.",
        ),
    ] = False,
    type_name: Annotated[str, type_option("With --compile: TPU type (default: the stack's).")] = "",
    batch: Annotated[
        int | None,
        typer.Option("--batch", help="With --compile: only this global batch size."),
    ] = None,
) -> int:
    """Run a few steps of a script on this machine, as on the TPU, and report problems.

    gs:// is the local cloud's; nothing is sent to Google or charged. Exits with 1 if something
    would not run on the TPU.

    Example: tpuctl rehearse train.py -- --batch 64
    """
    from tpuctl.model.stack.secret_sources import parse_option

    state: State = context.obj
    seconds = duration(timeout, "--timeout")
    program, form, words = parse_program(context, script, module, arguments, "rehearse")
    if compile_it:
        run_options = {"--steps": steps, "--timeout": timeout, "--tensorflow": tensorflow}
        _reject_options(run_options, "applies to runs, and --compile runs nothing")
        options = type_name, batch, sample or (), python, not no_check
        return _compile(state, program, form, words, *options)
    _reject_options({"--type": type_name, "--batch": batch}, "is only valid with --compile")
    tpuctl = state.tpuctl()
    submission = tpuctl.submission(
        program,
        words,
        form=form,
        check=not no_check,
        python=python,
        secrets=dict(map(parse_option, secret or ())),
    )
    return _run(state, tpuctl, submission, steps, seconds, sample or (), tensorflow)


def _run(
    state: State,
    tpuctl: Tpuctl,
    submission: Submission,
    steps: int | None,
    seconds: float | None,
    samples: Sequence[str],
    tensorflow: str,
) -> int:
    from tpuctl.flows.preflight.local_buckets import parse_sample
    from tpuctl.flows.preflight.rehearse import STEPS, TIMEOUT_SECONDS, RehearsalOptions
    from tpuctl.view.checks.findings import TextOutput
    from tpuctl.view.checks.rehearsal import rehearsal_lines

    options = RehearsalOptions(
        steps=STEPS if steps is None else steps,
        seconds=TIMEOUT_SECONDS if seconds is None else seconds,
        samples=tuple(map(parse_sample, samples)),
        tensorflow=tensorflow or None,
        is_verbose=state.verbose,
    )
    tpuctl.emit = _dim_output(state, tpuctl.emit)
    rehearsal = state.wait_for(tpuctl.rehearse(submission, options))
    rehearsal = _with_commands(state, rehearsal)
    paper = TextOutput.of(sys.stdout, no_color=state.no_color)

    def command(name: str) -> str:
        if name == "run" and not _is_up(state, tpuctl):
            name = "run --up"
        return f"{state.command_prefix} {name} {state.program}"

    lines = rehearsal_lines(rehearsal, paper, command)
    state.answer(
        lambda: responses.checks.Rehearsal.model_validate(rehearsal),
        lambda: print("\n".join(lines)),
    )
    if rehearsal.is_interrupted:
        state.after_interrupt = ("results so far are shown above", "")
        raise Interrupted
    return FAILED if rehearsal.assessment.has_errors else 0


def _with_commands(state: State, done: Rehearsal) -> Rehearsal:
    """With the commands in hints as they have to be typed for this script."""
    findings = tuple(
        replace(finding, hint=state.as_typed(finding.hint)) for finding in done.assessment.findings
    )
    return replace(done, assessment=replace(done.assessment, findings=findings))


def _is_up(state: State, tpuctl: Tpuctl) -> bool:
    """Whether the stack is known to be up: rehearsals do not ask Google."""
    from tpuctl.errors import TpuctlError

    if not state.is_free:
        return False
    try:
        status = state.wait_for(tpuctl.status())
    except TpuctlError:
        return False
    return bool(status.nodes) and not status.advice


def _reject_options(options: Mapping[str, object], problem: str) -> None:
    for option, value in options.items():
        if value:
            raise Usage(
                "Conflicting options",
                f"{option} {problem}",
                hint=f"Remove {option} or --compile."
                if "only valid" not in problem
                else f"Remove {option}, or add --compile.",
                where=option,
            )


def _compile(
    state: State,
    program: str,
    form: JobKind,
    words: Sequence[str],
    type_name: str,
    batch: int | None,
    samples: Sequence[str],
    python: str,
    check: bool,
) -> int:
    from pathlib import Path

    from tpuctl.flows.preflight.compile import compile_script
    from tpuctl.flows.preflight.local_buckets import parse_sample
    from tpuctl.view.checks.compilation import report_lines
    from tpuctl.view.terminal.text_wrapping import print_wrapped

    if form != "script":
        raise Usage(
            "Only a script can be compiled",
            f"{program} is a module",
            hint="Pass the script's file:\n    tpuctl rehearse --compile SCRIPT",
        )
    tpuctl = state.tpuctl()
    has_stack = state.named_stack_file is not None or state.stack_file.exists()
    submission = (
        tpuctl.submission(program, words, form=form, check=check, python=python)
        if has_stack
        else None
    )
    work = compile_script(
        Path(program),
        words,
        tpuctl.stack if has_stack else None,
        tpuctl.emit,
        type_name=type_name or None,
        batch=batch,
        variables=submission.secrets.values if submission is not None else None,
        samples=tuple(map(parse_sample, samples)),
        python=python,
        may_install=tpuctl.may_install,
    )
    report = state.wait_for(work)
    state.answer(
        lambda: responses.checks.Compilation.model_validate(report),
        lambda: print_wrapped("\n".join(report_lines(report))),
    )
    return report.exit_code


def _dim_output(state: State, emit: Emit) -> Emit:
    """Dim the script's output on a terminal with colors."""
    import os

    from tpuctl.model.events import CommandOutput

    is_plain = state.no_color or state.json or "NO_COLOR" in os.environ
    if is_plain or not sys.stderr.isatty():
        return emit

    def tell(event: Event) -> None:
        if isinstance(event, CommandOutput):
            words = event.data.rstrip(b"\n")  # views expect the line end last
            ends = event.data[len(words) :]
            event = replace(event, data=b"\x1b[2m" + words + b"\x1b[0m" + ends)
        emit(event)

    return tell
