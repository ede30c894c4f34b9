"""Commands for submitted jobs: jobs, jobs show, jobs compare, logs, wait, stop, profile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tpuctl.cli import responses
from tpuctl.cli.completion.candidates import complete_jobs
from tpuctl.cli.help.command_classes import App
from tpuctl.cli.jobs.follow import AllWorkers, find_job, remember
from tpuctl.cli.jobs.report import compare, show
from tpuctl.cli.parameters.arguments import duration
from tpuctl.cli.parameters.option_groups import expand_option_groups
from tpuctl.cli.parameters.options import Job, Order, ProjectId, StackName, sorted_by
from tpuctl.cli.stack.stack import client
from tpuctl.cli.state import State
from tpuctl.errors import TimedOut, Usage
from tpuctl.units import counted

if TYPE_CHECKING:
    from tpuctl.model.jobs.job import JobStatus
    from tpuctl.model.jobs.profile import Profile
    from tpuctl.model.logs.log_range import LogRange

MAX_PROFILE_SECONDS = 600.0

job_app = App(invoke_without_command=True)


def register(app: typer.Typer) -> None:
    job_app.callback()(jobs)
    job_app.command()(show)
    job_app.command()(compare)
    job_app.command("run")(run_queue)
    app.add_typer(job_app, name="jobs")
    for command in (logs, wait, stop, profile):
        app.command()(command)


def logs(
    context: typer.Context,
    job: Job = "",
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", "-f", help="Follow the log until the job ends; exit with its exit code."
        ),
    ] = False,
    all_workers: AllWorkers = False,
    tail: Annotated[
        int | None, typer.Option("--tail", metavar="N", min=0, help="Show only the last N lines.")
    ] = None,
    since: Annotated[
        str,
        typer.Option(
            "--since", metavar="WHEN", help="Show lines since a time: 10m, 06:14, 2026-11-21."
        ),
    ] = "",
    grep: Annotated[
        str,
        typer.Option(
            "--grep", metavar="PATTERN", help="Show only lines that match this regular expression."
        ),
    ] = "",
    offset: Annotated[
        int | None, typer.Option("--offset", min=0, help="Start at this byte of the log.")
    ] = None,
    attempt: Annotated[
        int | None,
        typer.Option(
            "--attempt",
            min=1,
            help="Show this attempt, and with -f all later ones (default: the last).",
        ),
    ] = None,
    stack: StackName = "",
    project: ProjectId = "",
) -> int:
    """Show a job's log, even after its machines are deleted.

    Example: tpuctl logs -f --tail 20
    """
    state: State = context.obj
    part = _log_range(tail, since, grep, offset, all_workers=all_workers)
    if tail == 0 and not follow:
        raise Usage(
            "Nothing to show",
            "--tail 0 starts at the end of the log",
            hint="To show new lines as they are written:\n    tpuctl logs -f --tail 0",
            where="--tail",
        )
    tpuctl = client(context, stack, project)

    async def work() -> int:
        record = await find_job(state, tpuctl, job, attempt)
        state.jobs.append(record.id)
        state.record(
            lambda: responses.jobs.Logs(job=record.id, attempt=record.attempt, output=record.output)
        )
        if follow:
            tpuctl.emit = remember(state, record, tpuctl.emit)
            state.view.expect_log()
            return await tpuctl.follow_interactively(record, all_workers=all_workers, part=part)
        await tpuctl.log(record, all_workers=all_workers, part=part)
        return 0

    return state.wait_for(work())


def _log_range(
    tail: int | None, since: str, grep: str, offset: int | None, *, all_workers: bool
) -> LogRange:
    """The range that the flags select. Raises Usage for conflicting flags."""
    from datetime import UTC, datetime

    from tpuctl.model.logs.log_range import LogRange, compile_pattern, parse_timestamp

    if offset is not None:
        others = {
            "--tail": tail is not None,
            "--since": bool(since),
            "--all-workers": all_workers,
        }
        for other in (name for name, is_given in others.items() if is_given):
            raise Usage(
                "Conflicting options",
                f"--offset starts at a byte of one worker's log; {other} starts elsewhere"
                if other != "--all-workers"
                else "--offset starts at a byte of one worker's log, --all-workers shows several",
                hint=f"Remove --offset or {other}.",
                where="--offset",
            )
    return LogRange(
        offset or 0,
        tail,
        parse_timestamp(since, datetime.now(UTC)) if since else None,
        compile_pattern(grep) if grep else None,
    )


def wait(
    context: typer.Context,
    job: Job = "",
    timeout: Annotated[
        str,
        typer.Option(
            "--timeout",
            metavar="DURATION",
            help="Wait at most DURATION (90s, 30m, 2h), then exit with 124. The job continues; "
            "to stop it instead, use `run --timeout`.",
        ),
    ] = "",
    stack: StackName = "",
    project: ProjectId = "",
) -> int:
    """Wait silently for a job to end, and exit with its exit code.

    Example: tpuctl wait --timeout 2h
    """
    import asyncio

    state: State = context.obj
    seconds = duration(timeout, "--timeout")
    tpuctl = client(context, stack, project)

    async def work() -> int:
        record = await find_job(state, tpuctl, job)
        tpuctl.emit = remember(state, record, tpuctl.emit)
        try:
            return await asyncio.wait_for(tpuctl.follow(record, show=False), seconds)
        except TimeoutError:
            raise TimedOut(
                "Timed out waiting for the job",
                f"job {record.id} did not end within {timeout} and is still running",
                hint=f"To wait again:\n    tpuctl wait {record.id}",
                where="--timeout",
            ) from None

    return state.wait_for(work())


def stop(
    context: typer.Context, job: Job = "", stack: StackName = "", project: ProjectId = ""
) -> None:
    """Stop a job on all workers: SIGTERM first, SIGKILL after 30 seconds.

    Example: tpuctl stop
    """
    state: State = context.obj
    tpuctl = client(context, stack, project)

    async def work() -> tuple[str, JobStatus]:
        record = await find_job(state, tpuctl, job)
        state.jobs.append(record.id)
        return record.id, await tpuctl.stop(record)

    job_id, status = state.wait_for(work())
    state.answer(
        lambda: responses.jobs.StoppedJob.from_object(status, job=job_id),
        lambda: print(f"{job_id}: {status.state}"),
    )


def profile(
    context: typer.Context,
    seconds: Annotated[
        str, typer.Argument(metavar="[SECONDS]", help="How long to trace, up to 10 minutes.")
    ] = "5",
    job: Annotated[
        str,
        typer.Option(
            "--job",
            metavar="JOB",
            help="Job id, or its last word (default: the running job, otherwise the latest).",
            autocompletion=complete_jobs,
        ),
    ] = "",
    all_workers: Annotated[
        bool, typer.Option("--all-workers", help="Trace all workers instead of the first.")
    ] = False,
) -> None:
    """Trace a running job with its framework's profiler, and store the profile in the bucket.

    The script needs no change; it must use JAX, PyTorch/XLA, or TensorFlow. TensorBoard and XProf
    show the profile.

    Example: tpuctl profile 10
    """
    state: State = context.obj
    length = duration(f"{seconds}s" if seconds[-1:].isdigit() else seconds, "SECONDS") or 5.0
    if length > MAX_PROFILE_SECONDS:
        raise Usage(
            "Invalid value",
            f"SECONDS: {seconds} is too long for a profile",
            hint="Some seconds show what each step does:\n    tpuctl profile 10",
            where="SECONDS",
        )
    tpuctl = state.tpuctl()

    async def work() -> Profile:
        record = await find_job(state, tpuctl, job)
        state.jobs.append(record.id)
        return await tpuctl.profile(record, length, all_workers=all_workers)

    collected = state.wait_for(work())
    state.answer(collected, lambda: _show_profile(state, collected.folder))


def _show_profile(state: State, folder: str) -> None:
    print(folder)
    state.note(
        "\nTo view it:\n    pip install xprof tensorboard tensorflow-cpu\n"
        f"    tensorboard --logdir {folder}"
    )


def run_queue(context: typer.Context, stack: StackName = "", project: ProjectId = "") -> None:
    """Run the stack's queued jobs here, one after another, until none is left.

    The stack's controller does this. On another computer it takes over from a
    controller that is gone, or helps it: each job is started once.

    Example: tpuctl jobs run
    """
    state: State = context.obj
    tpuctl = client(context, stack, project)
    count = state.wait_for(tpuctl.run_queue())
    state.answer(
        lambda: responses.jobs.QueueRun(jobs=count),
        lambda: state.note(f"The queue is empty: {counted(count, 'job')} ended."),
    )


@expand_option_groups
def jobs(
    context: typer.Context,
    *,
    order: Annotated[Order, sorted_by(lambda: (responses.jobs.ListedJob,))],
    stack: StackName = "",
    project: ProjectId = "",
) -> None:
    """List the stack's jobs, newest first.

    Example: tpuctl jobs
    """
    from tpuctl.view.jobs.job import show_jobs

    if context.invoked_subcommand is not None:
        return
    state: State = context.obj
    state.use_format(order.format)
    tpuctl = client(context, stack, project)
    summaries = state.wait_for(tpuctl.jobs())
    now = tpuctl.cloud.server_clock.now()
    state.jobs += [job.record.id for job in summaries]
    if not summaries:
        state.note(
            f"No jobs. To submit one:\n    {state.command_prefix} run {state.guess_script()}"
        )
    row_type = responses.jobs.ListedJob
    rows = order.apply(row_type, [dict(row_type.of(job, now)) for job in summaries])
    by_id = {job.record.id: job for job in summaries}
    state.answer(
        lambda: [responses.jobs.Job.model_validate(by_id[row["id"]]) for row in rows],
        lambda: show_jobs(rows, is_wide=state.is_wide),
    )
