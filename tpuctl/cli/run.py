"""The command that submits a job and follows it: run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpuctl.cli.arguments import duration
from tpuctl.cli.follow import PANEL, AllWorkers, job_data
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
        str | None, typer.Argument(help="A script; its folder is shipped.", show_default=False)
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            help="The script's own, after --. Without a script: a command of the current folder, "
            "which is shipped."
        ),
    ] = None,
    module: Annotated[
        str | None,
        typer.Option(
            "--module",
            "-m",
            metavar="NAME",
            help="Run a module, as python -m does; the current folder is shipped.",
        ),
    ] = None,
    detach: Annotated[
        bool,
        typer.Option(
            "--detach",
            "-d",
            help="Return once it has started on all workers, or say why not.",
        ),
    ] = False,
    up: Annotated[
        bool, typer.Option("--up", help="Bring the stack up first: plan, ask, make.")
    ] = False,
    down: Annotated[
        bool,
        typer.Option(
            "--down", help="Take the stack down at the end, whatever happened; the bucket stays."
        ),
    ] = False,
    secret: Annotated[
        list[str] | None,
        typer.Option(
            "--secret",
            metavar="NAME[=SOURCE]",
            help="A further secret, as in job.secrets: by its name alone from the environment "
            "here, or env:OTHER, or secret:NAME from Secret Manager. May be repeated.",
        ),
    ] = None,
    timeout: Annotated[
        str,
        typer.Option(
            "--timeout",
            metavar="DURATION",
            help="End the job after this, as 90s, 30m or 2h, with 124. Its machines do, whoever "
            "follows it; limits.max_hours deletes them as well.",
        ),
    ] = "",
    all_workers: AllWorkers = False,
    no_check: Annotated[bool, typer.Option("--no-check", help="Do not look at it first.")] = False,
) -> int:
    """Run a script, module or command on the workers, show its log, end with its exit code.

    Ctrl-C leaves the job running; a second one stops it. With --down the stack goes at the end:
    the exit code is the job's, or 1 where that is 0 and something that costs money is left.

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
            "with --detach nobody waits for the job's end, after which --down takes the stack away",
            hint="Leave --detach out. Or leave --down out: with limits.idle in the stack file the "
            "machines delete themselves some time after the job.",
            where="--down",
        )


def _check_as_step(tpuctl: Tpuctl, check: Callable[[], Submission], *, up: bool) -> Submission:
    """The check as a step of the story: the first of all that come, unless `up` comes between."""
    from tpuctl.engine.step import step
    from tpuctl.flows.run import PHASES, planned_phases

    if not up:
        tpuctl.emit(planned_phases(PHASES))
    with step(tpuctl.emit, "job/check", "check") as checking:
        submission = check()
        checking.result = "nothing stands in the way"
    return submission


async def _run_detached(state: State, tpuctl: Tpuctl, submission: Submission, *, up: bool) -> int:
    from tpuctl.flows.run import RunState, up_and_start

    ran = RunState()
    with _recording_result(state, ran):
        record = await up_and_start(
            tpuctl.context, submission, ran, up=up, confirm=lambda plan: confirm_up(state, plan)
        )
    state.data = {"job": record.id, "output": record.output}
    failed = await tpuctl.wait_until_running(record)
    if failed is not None:
        return failed
    state.answer(
        state.data,
        lambda: print(f"{record.id}\n\nNext:\n    {state.command_prefix} logs -f {record.id}"),
    )
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
    """The run to its end, and what can be typed after it."""
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
        except SignalReceived:  # before anything was begun
            raise Interrupted from None
    followed = ran.follow_result
    if ran.record is not None and followed and not (followed.still_running or followed.is_urgent):
        _suggest_next(state, tpuctl, ran, ran.record)
    return exit_code


@contextmanager
def _recording_result(state: State, ran: RunState) -> Iterator[None]:
    """Within, a run's state becomes what the command answers, also where it raises."""
    from tpuctl.view.stack import remaining_data

    try:
        yield
    finally:
        if ran.is_coming_up:
            state.after_interrupt = AFTER_INTERRUPT["up"]
        data: dict[str, Any] = {}
        if ran.record is not None:
            data = job_data(ran.record, ran.job_ended)
        if ran.down_result is not None:
            data["remaining"] = remaining_data(ran.down_result.remaining)
        state.data = data or None


def _suggest_next(state: State, tpuctl: Tpuctl, ran: RunState, record: JobRecord) -> None:
    """What can be typed after the job's end."""
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
