"""Jobs on stdout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tpuctl.model.sweep import describe_values
from tpuctl.view.tables import print_table

if TYPE_CHECKING:
    from tpuctl.model.job import JobRecord, JobSummary

__all__ = ["show_jobs"]


WIDE = ("workers", "framework", "runtime", "node", "zone", "submitted by")


def show_jobs(jobs: Sequence[JobSummary], *, is_wide: bool = False) -> None:
    """The jobs as a table; nothing without jobs.

    Retries are those left by preemption, infrastructure, failure and request.
    """
    if not jobs:
        return
    values = ["values"] if any(job.record.values for job in jobs) else []
    columns = ("job", "script", *values, "state", "exit", "attempt", "retries", "submitted (UTC)")
    print_table(
        (*columns, *WIDE) if is_wide else columns,
        [
            (
                job.record.id,
                f"-m {job.record.script}" if job.record.kind == "module" else job.record.script,
                *(describe_values(job.record.values) for _ in values),
                job.status.state,
                "" if job.status.exit_code is None else str(job.status.exit_code),
                str(job.record.attempt),
                "/".join(str(count) for count in job.retries_left.values()),
                f"{job.record.submitted:%Y-%m-%d %H:%M}",
                *(_wide_cells(job.record) if is_wide else ()),
            )
            for job in jobs
        ],
        numbers=("exit", "attempt", "workers"),
        is_wide=is_wide,
    )


def _wide_cells(record: JobRecord) -> tuple[str, ...]:
    where = record.node, record.zone
    software = record.framework or "", record.runtime
    return str(record.worker_count), *software, *where, record.submitted_by
