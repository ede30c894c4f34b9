"""The `run` command: submit a job and follow it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from tpuctl.cli import responses
from tpuctl.cli.arguments import duration
from tpuctl.cli.follow import PANEL, AllWorkers
from tpuctl.cli.script_arguments import AFTER_DASHES, AfterDashes, parse_program
from tpuctl.cli.stack import confirm_up
from tpuctl.cli.state import AFTER_INTERRUPT, Interrupted, State
from tpuctl.errors import Usage

if TYPE_CHECKING:
    from tpuctl.api.interface import Tpuctl
    from tpuctl.flows.run import RunState
    from tpuctl.flows.submission import Submission
    from tpuctl.model.job import JobRecord

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command(cls=AfterDashes, rich_help_panel=PANEL)(run)


def run(
    context: typer.Context,
    script: Annotated[
        str | None,
        typer.Argument(help="Script to run; its folder is uploaded.", show_default=False),
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            help="Arguments passed to the script, after --. Without a script: a command to run in "
            "the current folder, which is uploaded."
        ),
    ] = None,
    module: Annotated[
        str | None,
        typer.Option(
            "--module",
            "-m",
            metavar="NAME",
            help="Run a module, like python -m; the current folder is uploaded.",
        ),
    ] = None,
    detach: Annotated[
        bool,
        typer.Option(
            "--detach",
            "-d",
            help="Return once the job has started on all workers.",
        ),
    ] = False,
    up: Annotated[bool, typer.Option("--up", help="Bring the stack up first.")] = False,
    down: Annotated[
        bool,
        typer.Option("--down", help="Delete the stack at the end in any case; the bucket is kept."),
    ] = False,
    secret: Annotated[
        list[str] | None,
        typer.Option(
            "--secret",
            metavar="NAME[=SOURCE]",
            help="Additional secret, as in job.secrets: NAME alone is read from the environment; "
            "SOURCE is env:OTHER, or secret:NAME in Secret Manager. May be repeated.",
        ),
    ] = None,
    timeout: Annotated[
        str,
        typer.Option(
            "--timeout",
            metavar="DURATION",
            help="Stop the job after DURATION (90s, 30m, 2h); exit code 124. The machines enforce "
            "it; limits.max_hours also deletes them.",
        ),
    ] = "",
    all_workers: AllWorkers = False,
    no_check: Annotated[bool, typer.Option("--no-check", help="Skip the preflight check.")] = False,
) -> int:
    """Run a script, module or command on the workers, follow its log, exit with its exit code.

    Ctrl-C detaches and leaves the job running; a second one stops it. With --down, the stack is
    deleted at the end, and the exit code is 1 if the job succeeded but billable resources remain.

    Example: tpuctl run train.py -- --steps 1000
    """
    from tpuctl.model.secret_sources import parse_option

    state: State = context.obj
    _validate_options(down=down, detach=detach)
    seconds = duration(timeout, "--timeout")
    program, form, words = parse_program(
        script, module, arguments or (), context.meta[AFTER_DASHES]
    )
    tpuctl = state.tpuctl()

    def check() -> Submission:
        return tpuctl.submission(
            program,
            words,
            form=form,
            check=not no_check,
            timeout=seconds,
            secrets=dict(map(parse_option, secret or ())),
        )

    submission = check() if no_check else _check_as_step(tpuctl, check, up=up)
    if detach:
        return state.wait_for(_run_detached(state, tpuctl, submission, up=up))
    return _run_attached(
        state, tpuctl, submission, up=up, down=down, all_workers=all_workers, seconds=seconds
    )


def _validate_options(*, down: bool, detach: bool) -> None:
    """Raises Usage for options that contradict each other."""
    if down and detach:
        raise Usage(
            "Conflicting options",
            "--down deletes the stack when the job ends, and --detach does not wait for that",
            hint="Remove --detach. Or remove --down and set limits.idle in the stack file: the "
            "machines then delete themselves some time after the job.",
            where="--down",
        )


def _check_as_step(tpuctl: Tpuctl, check: Callable[[], Submission], *, up: bool) -> Submission:
    """Run the check as a step; without `up`, it is the first of the planned phases."""
    from tpuctl.engine.step import step
    from tpuctl.flows.run import PHASES, planned_phases

    if not up:
        tpuctl.emit(planned_phases(PHASES))
    with step(tpuctl.emit, "job/check", "check") as checking:
        submission = check()
        checking.result = "no problems"
    return submission


async def _run_detached(state: State, tpuctl: Tpuctl, submission: Submission, *, up: bool) -> int:
    from tpuctl.flows.run import RunState, up_and_start

    ran = RunState()
    with _recording_result(state, ran):
        record = await up_and_start(
            tpuctl.context, submission, ran, up=up, confirm=lambda plan: confirm_up(state, plan)
        )
    state.record(lambda: responses.stacks.JobSubmission(job=record.id, output=record.output))
    failed = await tpuctl.wait_until_running(record)
    if failed is not None:
        return failed
    state.close_view()
    if not state.json:
        print(f"{record.id}\n\nNext:\n    {state.command_prefix} logs -f {record.id}")
    return 0


def _run_attached(
    state: State,
    tpuctl: Tpuctl,
    submission: Submission,
    *,
    up: bool,
    down: bool,
    all_workers: bool,
    seconds: float | None,
) -> int:
    """Run the job to its end, and suggest the next command."""
    from tpuctl.flows import run as flow
    from tpuctl.flows.signals import SignalReceived

    ran = flow.RunState()
    with _recording_result(state, ran):
        try:
            exit_code = state.wait_for(
                flow.run(
                    tpuctl.context,
                    submission,
                    ran,
                    up=up,
                    down=down,
                    confirm=lambda plan: confirm_up(state, plan),
                    all_workers=all_workers,
                    part=tpuctl.with_worker_names(None),
                    seconds=seconds,
                    interactive=True,
                )
            )
        except SignalReceived:  # before the run began
            raise Interrupted from None
    followed = ran.follow_result
    if ran.record is not None and followed and not (followed.still_running or followed.is_urgent):
        _suggest_next(state, tpuctl, ran, ran.record)
    return exit_code


@contextmanager
def _recording_result(state: State, ran: RunState) -> Iterator[None]:
    """Record the run's state as the command's data, even if it raises."""
    try:
        yield
    finally:
        if ran.is_coming_up:
            state.after_interrupt = AFTER_INTERRUPT["up"]
        if ran.record is not None:
            record = ran.record
            state.jobs.append(record.id)
            state.record(
                lambda: responses.stacks.JobSubmission.of(record, ran.job_ended, ran.down_result)
            )
        elif ran.down_result is not None:
            state.record(lambda: responses.stacks.Down.model_validate(ran.down_result))


def _suggest_next(state: State, tpuctl: Tpuctl, ran: RunState, record: JobRecord) -> None:
    """Suggest the next command after the job ended."""
    from tpuctl.model.events import Note

    commands = [f"jobs show {record.id}", f"report {record.id}"]
    if ran.job_ended is None or ran.job_ended.state != "succeeded":
        commands = [f"explain {record.id}"]
    if ran.down_exit_code != 0:
        commands.append("down")
    if not state.json:
        tpuctl.emit(
            Note(
                "\n".join(
                    [
                        "",
                        "Next:",
                        *(f"    {state.command_prefix} {command}" for command in commands),
                    ]
                )
            )
        )
