"""Shared by commands that follow jobs: an option, and their --json data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpuctl.cli.state import State

if TYPE_CHECKING:
    from tpuctl.model.events import Emit, Event, JobEnded
    from tpuctl.model.job import JobRecord

__all__ = ["PANEL", "AllWorkers", "job_data", "remember"]

PANEL = "Jobs"

AllWorkers = Annotated[
    bool,
    typer.Option("--all-workers", help="Show the logs of all workers, prefixed with the worker."),
]


def job_data(record: JobRecord, ended: JobEnded | None) -> dict[str, Any]:
    """The envelope's data of a job that was followed.

    `job_exit_code` is the job's own: the envelope's `exit_code` may be one of tpuctl's.
    """
    job_exit_code = ended.exit_code if ended is not None and ended.is_job_exit_code else None
    state = ended.state if ended is not None else None
    return {
        "job": record.id,
        "output": record.output,
        "state": state,
        "job_exit_code": job_exit_code,
    }


def remember(state: State, record: JobRecord, emit: Emit) -> Emit:
    """`emit`, which also keeps the envelope's data up to date."""
    from tpuctl.model.events import JobEnded

    state.data = job_data(record, None)

    def emit_and_note(event: Event) -> None:
        if isinstance(event, JobEnded):
            state.data = job_data(record, event)
        emit(event)

    return emit_and_note
