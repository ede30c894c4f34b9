"""Shared by commands that follow jobs: an option, and their result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tpuctl.cli import responses
from tpuctl.cli.state import State

if TYPE_CHECKING:
    from tpuctl.api.interface import Tpuctl
    from tpuctl.model.events import Emit, Event
    from tpuctl.model.jobs.job import JobRecord


AllWorkers = Annotated[
    bool,
    typer.Option("--all-workers", help="Show all workers' logs, with their names."),
]


async def find_job(
    state: State, tpuctl: Tpuctl, name: str, attempt: int | None = None
) -> JobRecord:
    """The job that is meant, as `Tpuctl.job`; of several that are running, the user chooses one.

    Without a terminal, raises SeveralRunning, which lists them.
    """
    from tpuctl.flows.jobs.jobs import SeveralRunning

    try:
        return await tpuctl.job(name, attempt)
    except SeveralRunning as error:
        if not state.can_ask:
            raise
        lines = error.diagnostics[0].detail.splitlines()
        index = state.choose(f"{error.diagnostics[0].summary}. Which one?", lines)
        return await tpuctl.job(error.jobs[index].id, attempt)


def remember(state: State, record: JobRecord, emit: Emit) -> Emit:
    """`emit`, which also keeps the command's result up to date."""
    from tpuctl.model.events import JobEnded

    state.jobs.append(record.id)
    state.record(lambda: responses.jobs.JobSubmission.of(record))

    def emit_and_note(event: Event) -> None:
        if isinstance(event, JobEnded):
            state.record(lambda: responses.jobs.JobSubmission.of(record, event))
        emit(event)

    return emit_and_note
