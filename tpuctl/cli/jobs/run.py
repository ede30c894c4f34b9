"""The `run` command: submit a job and follow it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from tpuctl.cli import responses
from tpuctl.cli.jobs.follow import AllWorkers
from tpuctl.cli.jobs.script_arguments import (
    AfterDashes,
    JobArguments,
    JobModule,
    JobPython,
    JobScript,
    NoCheck,
    parse_program,
)
from tpuctl.cli.jobs.script_stack import (
    JobTpu,
    RunKeep,
    RunProject,
    RunSpot,
    RunTpu,
    RunZone,
    ScriptTpuOptions,
)
from tpuctl.cli.parameters.arguments import duration
from tpuctl.cli.state import AFTER_INTERRUPT, Interrupted, State
from tpuctl.errors import TpuctlError, Usage

if TYPE_CHECKING:
    from tpuctl.api.interface import Tpuctl
    from tpuctl.flows.jobs.run_state import Decision, RunOptions, RunState
    from tpuctl.flows.jobs.submission import Submission
    from tpuctl.model.jobs.job import JobRecord
    from tpuctl.model.jobs.queue import Queued
    from tpuctl.model.jobs.sweep import SweepValues


def register(app: typer.Typer) -> None:
    app.command(cls=AfterDashes)(run)


def run(
    context: typer.Context,
    script: JobScript = None,
    arguments: JobArguments = None,
    module: JobModule = None,
    detach: Annotated[
        bool,
        typer.Option(
            "--detach",
            "-d",
            help="Return when all workers have started; with a controller and --up, --down or "
            "--each, at once: it does the rest.",
        ),
    ] = False,
    up: Annotated[bool, typer.Option("--up", help="Create or update the stack first.")] = False,
    down: Annotated[
        bool,
        typer.Option("--down", help="Delete the stack at the end, even after a failure."),
    ] = False,
    each: Annotated[
        list[str] | None,
        typer.Option(
            "--each",
            metavar="NAME=VALUE,...",
            help="Run one job per value of --NAME; repeatable.",
        ),
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option(
            "--secret",
            metavar="NAME[=SOURCE]",
            help="Also pass a secret: from the environment, or secret:NAME.",
        ),
    ] = None,
    queue: Annotated[
        bool,
        typer.Option(
            "--queue", help="Have the controller run it when the TPU is free, and return."
        ),
    ] = False,
    priority: Annotated[
        int | None,
        typer.Option(
            "--priority",
            metavar="N",
            min=-100,
            max=100,
            help="Its place in the queue: a higher one runs first (default: 0).",
        ),
    ] = None,
    parallel: Annotated[
        int | None,
        typer.Option(
            "--parallel",
            metavar="N",
            min=1,
            max=99,
            help="Run the jobs of --each on up to N TPUs.",
        ),
    ] = None,
    wait: Annotated[
        bool,
        typer.Option("--wait", help="Wait until the job that uses the TPU has ended."),
    ] = False,
    timeout: Annotated[
        str,
        typer.Option(
            "--timeout",
            metavar="DURATION",
            help="Stop the job after 90s, 30m or 2h; exit code 124.",
        ),
    ] = "",
    all_workers: AllWorkers = False,
    python: JobPython = "",
    no_check: NoCheck = False,
    tpu: RunTpu = "",
    zone: RunZone = "",
    spot: RunSpot = False,
    project: RunProject = "",
    keep: RunKeep = False,
) -> int:
    """Run a script on the workers, follow its log, and exit with its exit code.

    Ctrl-C detaches and leaves the job running; a second one stops it.

    With --tpu, no stack file is needed: it shows the price and asks, creates the
    TPU, runs the script, and deletes everything but the bucket, whatever happens.

    Example: tpuctl run train.py -- --steps 1000
    Example: tpuctl run train.py --each lr=0.1,0.01
    Example: tpuctl run train.py --tpu v6e-1
    """
    from tpuctl.flows.jobs.run_state import RunOptions
    from tpuctl.model.jobs.queue import Queued
    from tpuctl.model.jobs.sweep import parse_sweep
    from tpuctl.model.stack.secret_sources import parse_option

    state: State = context.obj
    tpu_options = ScriptTpuOptions(tpu, zone, spot, project, keep)
    if priority is not None and not queue:
        raise Usage(
            "Conflicting options",
            "--priority is a place in the queue",
            hint="Add --queue.",
            where="--priority",
        )
    if parallel is not None and not (each and (queue or detach)):
        raise Usage(
            "Conflicting options",
            "--parallel is for the jobs of a sweep that the stack's controller runs",
            hint="Add --each and --detach.",
            where="--parallel",
        )
    seconds = duration(timeout, "--timeout")
    program, form, words = parse_program(context, script, module, arguments)
    tpu_options.validate(down=down, detach=detach)
    sweep = parse_sweep(each, words) if each else []
    script_tpu = tpu_options.open(state, program, form, words)
    tpuctl = script_tpu.tpuctl
    is_unattended = queue or (
        detach
        and tpuctl.stack.has_recovery
        and not tpuctl.stack.is_node
        and (up or down or bool(each))
    )
    if not is_unattended:
        _validate_options(down=down, detach=detach, is_sweep=bool(each))
    up, down = up or script_tpu.goes_up, down or script_tpu.goes_down

    def check() -> Submission:
        return tpuctl.submission(
            program,
            words,
            form=form,
            check=not no_check,
            python=python,
            timeout=seconds,
            secrets=dict(map(parse_option, secret or ())),
        )

    submission = check() if no_check else _check_as_step(tpuctl, check, up=up)
    options = RunOptions(
        up=up,
        down=down,
        each=sweep,
        confirm=script_tpu.confirm,
        waits=_decide_to_wait(state, wait=wait),
        all_workers=all_workers,
        seconds=seconds,
    )
    with script_tpu.naming_conflicts():
        if is_unattended:
            queued = Queued(priority=priority or 0, down=down, parallel=parallel or 1)
            if parallel is not None:
                _confirm_sweep(state, tpuctl, submission, len(sweep), parallel)
            return state.wait_for(_run_queued(state, script_tpu, submission, options, queued))
        if detach:
            return state.wait_for(_run_detached(state, script_tpu, submission, options))
        if sweep:
            _confirm_sweep(state, tpuctl, submission, len(sweep))
        return _run_attached(state, script_tpu, submission, options)


def _validate_options(*, down: bool, detach: bool, is_sweep: bool) -> None:
    """Raises Usage for options that contradict each other."""
    if is_sweep and detach:
        raise Usage(
            "Conflicting options",
            "--each starts a job when the one before has ended, and --detach does not wait for "
            "that",
            hint="Remove --detach. Or have a controller run the jobs while this computer is off: "
            "set in the stack file\n    controller: {}",
            where="--each",
        )
    if down and detach:
        raise Usage(
            "Conflicting options",
            "--down deletes the stack when the job ends, and --detach does not wait for that",
            hint="Remove --detach. Or have a controller take it down: set in the stack file\n"
            "    controller: {}\n"
            "Or remove --down and set limits.idle: the machines then delete themselves some time "
            "after the job.",
            where="--down",
        )


def _check_as_step(tpuctl: Tpuctl, check: Callable[[], Submission], *, up: bool) -> Submission:
    """Run the check as a step; without `up`, it is the first of the planned phases."""
    from tpuctl.engine.step import step
    from tpuctl.flows.jobs.run import PHASES, planned_phases

    if not up:
        tpuctl.emit(planned_phases(PHASES))
    with step(tpuctl.emit, "job/check", "check") as checking:
        submission = check()
        checking.result = "no problems"
    return submission


def _confirm_sweep(
    state: State, tpuctl: Tpuctl, submission: Submission, count: int, tpus: int = 1
) -> None:
    """Say how long the jobs may take and what that costs, and ask, unless --yes."""
    from tpuctl.view.jobs.sweep import sweep_sentence

    if not state.yes:
        expected = state.wait_for(tpuctl.estimate_sweep(submission, count, tpus))
        state.confirm(f"{sweep_sentence(expected, is_free=state.is_free)} Continue?")


def _decide_to_wait(state: State, *, wait: bool) -> Decision:
    """Wait for another job if --wait is set, or if the user agrees in a terminal."""

    def decide(job: str) -> bool:
        question = f"{job}\nThe TPU runs one job at a time. Wait until this one has ended?"
        return wait or (not state.yes and state.can_ask and state.asks_permission(question))

    return decide


async def _run_detached(
    state: State, tpu: JobTpu, submission: Submission, options: RunOptions
) -> int:
    from tpuctl.flows.jobs.run_state import RunState

    tpuctl, run_state = tpu.tpuctl, RunState()
    with _recording_result(state, run_state):
        record = await tpuctl.run_detached(submission, options, run_state)
    state.record(lambda: responses.jobs.JobSubmission(job=record.id, output=record.output))
    failed = await tpuctl.wait_until_running(record)
    if failed is not None:
        return failed
    state.close_view()
    if not state.json:
        print(record.id)
        state.suggest(state.typed(f"logs -f {record.id}"))
        tpu.show_kept()
    return 0


async def _run_queued(
    state: State, tpu: JobTpu, submission: Submission, options: RunOptions, queued: Queued
) -> int:
    """Have the controller run the job, or the jobs of a sweep, and return."""
    tpuctl = tpu.tpuctl
    records = await tpuctl.enqueue(submission, options, queued)
    answers = [
        responses.jobs.JobSubmission(job=record.id, output=record.output) for record in records
    ]
    queued_jobs = responses.jobs.QueuedJobs(jobs=answers)
    state.record(lambda: queued_jobs if options.each else answers[0])
    state.close_view()
    if not state.json:
        for record in records:
            print(record.id)
        name = tpuctl.stack.names.controller
        state.note(f"{name} does the rest; this computer may be switched off.")
        ids = [record.id for record in records]
        follow = f"jobs compare {' '.join(ids)}" if queued.parallel > 1 else f"logs -f {ids[0]}"
        state.suggest(state.typed(follow))
    state.jobs += [record.id for record in records]
    return 0


def _run_attached(state: State, tpu: JobTpu, submission: Submission, options: RunOptions) -> int:
    """Run the job or the jobs of a sweep to the end, and suggest the next command."""
    from tpuctl.flows.jobs.run_state import RunState

    run_state = RunState()
    with tpu.showing_end(run_state):
        exit_code = _follow_jobs(state, tpu.tpuctl, submission, options, run_state)
        followed = run_state.follow_result
        if (
            not options.each
            and run_state.record is not None
            and followed
            and not (followed.still_running or followed.is_urgent)
        ):
            _suggest_next(state, tpu.tpuctl, run_state, run_state.record)
        return exit_code


def _follow_jobs(
    state: State,
    tpuctl: Tpuctl,
    submission: Submission,
    options: RunOptions,
    run_state: RunState,
) -> int:
    from tpuctl.flows.signals import SignalReceived

    with (
        _recording_result(state, run_state),
        _showing_sweep(state, tpuctl, options.each, run_state),
    ):
        try:
            return state.wait_for(tpuctl.run_interactively(submission, options, run_state))
        except SignalReceived:  # before the run began
            raise Interrupted from None


@contextmanager
def _showing_sweep(
    state: State, tpuctl: Tpuctl, sweep: Sequence[SweepValues], run_state: RunState
) -> Iterator[None]:
    """Show what became of the jobs of a sweep, even if it raises."""
    try:
        yield
    except BaseException:
        with suppress(TpuctlError):
            _show_sweep(state, tpuctl, sweep, run_state)
        raise
    _show_sweep(state, tpuctl, sweep, run_state)


def _show_sweep(
    state: State, tpuctl: Tpuctl, sweep: Sequence[SweepValues], run_state: RunState
) -> None:
    from tpuctl.view.jobs.sweep import print_sweep

    jobs = [record.id for record in run_state.records]
    if not sweep or not jobs:
        return
    state.jobs += jobs
    reports = state.wait_for(tpuctl.sweep_reports(jobs))
    command = "down" if run_state.down_exit_code else f"jobs compare {' '.join(jobs)}"

    def show() -> None:
        print()
        print_sweep(sweep, reports)
        if len(reports) > 1:
            state.suggest(state.typed(command))

    state.answer(lambda: responses.jobs.Sweep.of(sweep, reports, run_state.down_result), show)


@contextmanager
def _recording_result(state: State, run_state: RunState) -> Iterator[None]:
    """Record the run's state as the command's data, even if it raises."""
    try:
        yield
    finally:
        if run_state.is_coming_up:
            state.after_interrupt = AFTER_INTERRUPT["up"]
        if run_state.record is not None and not run_state.record.values:
            record = run_state.record
            state.jobs.append(record.id)
            state.record(
                lambda: responses.jobs.JobSubmission.of(
                    record, run_state.job_ended, run_state.down_result
                )
            )
        elif run_state.down_result is not None:
            state.record(lambda: responses.stacks.Down.model_validate(run_state.down_result))


def _suggest_next(state: State, tpuctl: Tpuctl, run_state: RunState, record: JobRecord) -> None:
    """Suggest the next command after the job ended; after a success, once for each version of the
    script."""
    from tpuctl.flows.jobs.rehearsals import content_of, is_new_advice
    from tpuctl.model.events import Note

    command = f"explain {record.id}"
    if run_state.down_exit_code:
        command = "down"
    elif run_state.job_ended is not None and run_state.job_ended.state == "succeeded":
        content = content_of(tpuctl.stack, record.bundle, record.script)
        if not is_new_advice("result", tpuctl.stack, content):
            return
        command = f"jobs show {record.id}"
    if not state.json:
        tpuctl.emit(Note(f"\nNext:\n    {state.typed(command)}"))
