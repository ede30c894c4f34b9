"""Jobs on stdout."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from tpuctl.model.jobs.sweep import describe_values
from tpuctl.units import clock_time, format_duration
from tpuctl.view.terminal.tables import print_table

if TYPE_CHECKING:
    from tpuctl.model.jobs.job import JobRecord, JobSummary

WIDE = ("submitted (UTC)", "workers", "framework", "runtime", "node", "zone", "submitted by")


def show_jobs(jobs: Sequence[JobSummary], now: datetime, *, is_wide: bool = False) -> None:
    """The jobs as a table, with the time since each was submitted, and how long it took so far.

    Nothing without jobs. Columns that are the same for most stacks are left out if they have
    nothing to say.
    """
    if not jobs:
        return
    values = ["values"] if any(job.record.values for job in jobs) else []
    attempt = ["attempt"] if any(job.record.attempt > 1 for job in jobs) else []
    columns = ("job", "script", *values, "state", *attempt, "age", "duration")
    print_table(
        (*columns, *WIDE) if is_wide else columns,
        [
            (
                job.record.id,
                f"-m {job.record.script}" if job.record.kind == "module" else job.record.script,
                *(describe_values(job.record.values) for _ in values),
                _state(job),
                *(str(job.record.attempt) for _ in attempt),
                _age(job.record, now),
                _duration(job, now),
                *(_wide_cells(job.record) if is_wide else ()),
            )
            for job in jobs
        ],
        numbers=("attempt", "age", "duration", "workers"),
        whole=("job", "state", "age", "duration"),
        is_wide=is_wide,
    )


def _state(job: JobSummary) -> str:
    """The state, with the exit code of a job that failed; other states have only one."""
    code = f" ({job.status.exit_code})" if job.status.state == "failed" else ""
    return job.status.state.replace("_", " ") + code


def _age(record: JobRecord, now: datetime) -> str:
    """The time since the job was submitted, in its largest unit."""
    seconds = max(0.0, (now - record.submitted).total_seconds())
    return " ".join(format_duration(seconds).split()[:2])


def _duration(job: JobSummary, now: datetime) -> str:
    end = now if job.status.exit_code is None else job.status.finished
    submitted = job.record.submitted
    return "" if end is None else clock_time(max(0.0, (end - submitted).total_seconds()))


def _wide_cells(record: JobRecord) -> tuple[str, ...]:
    where = record.node, record.zone
    software = record.framework or "", record.runtime
    submitted = f"{record.submitted:%Y-%m-%d %H:%M}"
    return submitted, str(record.worker_count), *software, *where, record.submitted_by
