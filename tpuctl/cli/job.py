"""Commands for jobs: run, jobs, logs, wait, stop, ssh."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpuctl.cli.app import State

if TYPE_CHECKING:
    from tpuctl.api import Tpuctl
    from tpuctl.model.job import JobRecord

__all__ = ["register"]

PANEL = "Jobs"
INTERRUPTED, STOPPED = 130, 143
SECOND_THOUGHTS = 3.0  # seconds in which another Ctrl-C stops the job

STOPPING = "Stopping job {}: it has 30 seconds to end by itself."

AllWorkers = Annotated[
    bool, typer.Option("--all-workers", help="All workers' logs, with their names.")
]
Job = Annotated[str, typer.Argument(help="A job's id, or its last word; the latest if empty.")]


def register(app: typer.Typer) -> None:
    for command in (jobs, logs, wait, stop):
        app.command(rich_help_panel=PANEL)(command)
    # What follows the worker is the command's own, as with ssh itself.
    app.command(rich_help_panel=PANEL, context_settings={"allow_interspersed_args": False})(ssh)
    # What follows the script is the script's own, dashes or not.
    app.command(
        rich_help_panel=PANEL,
        context_settings={"ignore_unknown_options": False, "allow_interspersed_args": True},
    )(run)


def run(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="A Python script; its folder is shipped.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="The script's own arguments, after --.")
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return once the job has started.")
    ] = False,
    all_workers: AllWorkers = False,
    no_check: Annotated[
        bool, typer.Option("--no-check", help="Do not look at the script first.")
    ] = False,
) -> int:
    """Run a script on the stack's workers, show its log, end with its exit code.

    Ctrl-C leaves the job running; a second one stops it.

    Example: tpuctl run train.py -- --steps 1000
    """
    state: State = context.obj
    tpuctl = state.tpuctl()

    async def work() -> int:
        record = await tpuctl.submit(script, arguments or (), check=not no_check)
        state.data = {"job": record.id, "output": record.output}
        if detach:
            state.answer(
                state.data,
                lambda: print(f"{record.id}\n\nNext:\n    {state.typed} logs -f {record.id}"),
            )
            return 0
        return await _follow(state, tpuctl, record, all_workers=all_workers)

    return state.wait_for(work())


def logs(
    context: typer.Context,
    job: Job = "",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the job ends, with its exit code.")
    ] = False,
    all_workers: AllWorkers = False,
    offset: Annotated[int, typer.Option("--offset", min=0, help="Start at this byte.")] = 0,
) -> int:
    """Show a job's log, also after its machines are gone.

    Example: tpuctl logs -f
    """
    state: State = context.obj
    tpuctl = state.tpuctl()

    async def work() -> int:
        record = await tpuctl.job(job)
        state.data = {"job": record.id, "output": record.output}
        if follow:
            return await _follow(state, tpuctl, record, all_workers=all_workers, offset=offset)
        await tpuctl.log(record, all_workers=all_workers, offset=offset)
        return 0

    return state.wait_for(work())


def wait(context: typer.Context, job: Job = "") -> int:
    """Wait for a job to end, silently, and end with its exit code.

    Example: tpuctl wait
    """
    state: State = context.obj
    tpuctl = state.tpuctl()

    async def work() -> int:
        record = await tpuctl.job(job)
        state.data = {"job": record.id, "output": record.output}
        return await tpuctl.follow(record, show=False)

    return state.wait_for(work())


def stop(context: typer.Context, job: Job = "") -> None:
    """Stop a job on all its workers: it is asked to end, and made to after 30 seconds.

    Example: tpuctl stop
    """
    state: State = context.obj
    tpuctl = state.tpuctl()

    async def work() -> dict[str, object]:
        record = await tpuctl.job(job)
        status = await tpuctl.stop(record)
        return {"job": record.id, "state": status.state, "exit_code": status.exit_code}

    data = state.wait_for(work())
    state.answer(data, lambda: print(f"{data['job']}: {data['state']}"))


def jobs(context: typer.Context) -> None:
    """List the stack's jobs, the latest first.

    Example: tpuctl jobs
    """
    from tpuctl.view.job import job_data, show_jobs

    state: State = context.obj
    found = state.wait_for(state.tpuctl().jobs())
    state.answer([job_data(one) for one in found], lambda: show_jobs(found, state.typed))


def ssh(
    context: typer.Context,
    worker: Annotated[int, typer.Argument(min=0, help="Which worker.")] = 0,
    command: Annotated[
        list[str] | None, typer.Argument(help="A command instead of a shell, after --.")
    ] = None,
) -> None:
    """Open a shell on a worker, or run a command there.

    Example: tpuctl ssh 0 -- nproc
    """
    import os
    import shutil

    from tpuctl.errors import TpuctlError

    state: State = context.obj
    words = list(command or ())
    if words[:1] == ["--"]:
        del words[0]
    line = state.wait_for(state.tpuctl().ssh_command(worker, words))
    state.view.close()
    if shutil.which("ssh") is None:
        raise TpuctlError("No ssh program", "ssh is not on this machine", hint="Install OpenSSH.")
    os.execvp(line[0], line)


async def _follow(
    state: State, tpuctl: Tpuctl, record: JobRecord, *, all_workers: bool, offset: int = 0
) -> int:
    """The job's log until it ends, or until Ctrl-C: the job goes on, unless there are two."""
    import asyncio
    import signal

    from tpuctl.model.events import Event, LogChunk, Note

    shown = offset
    show = tpuctl.emit

    def count(event: Event) -> None:
        nonlocal shown
        if isinstance(event, LogChunk):
            shown = event.offset + len(event.data)
        show(event)

    tpuctl.emit = count
    interrupted = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupted.set)
    following = asyncio.ensure_future(tpuctl.follow(record, all_workers=all_workers, offset=offset))
    waiting = asyncio.ensure_future(interrupted.wait())
    await asyncio.wait({following, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if following.done():
        return following.result()
    following.cancel()
    interrupted.clear()
    more = "--all-workers" if all_workers else f"--offset {shown}"
    show(
        Note(
            f"\nJob {record.id} goes on. Come back to it with\n"
            f"    {state.typed} logs -f {record.id} {more}\n"
            f"Ctrl-C again within {SECOND_THOUGHTS:.0f} seconds stops it."
        )
    )
    await asyncio.gather(following, return_exceptions=True)
    try:
        await asyncio.wait_for(interrupted.wait(), SECOND_THOUGHTS)
    except TimeoutError:
        return INTERRUPTED
    interrupted.clear()
    show(Note(STOPPING.format(record.id)))
    stopping = asyncio.ensure_future(tpuctl.stop(record))
    waiting = asyncio.ensure_future(interrupted.wait())
    await asyncio.wait({stopping, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if stopping.done():
        stopping.result()
        show(Note(f"Job {record.id} was stopped."))
    else:
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
        show(Note(f"Job {record.id} is still being stopped."))
    return STOPPED
