"""Jobs on stdout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tpuctl.view.tables import print_table

if TYPE_CHECKING:
    from tpuctl.model.job import JobSummary

__all__ = ["show_jobs"]


def show_jobs(jobs: Sequence[JobSummary], command_prefix: str = "tpuctl") -> None:
    """The jobs as a table; `typed` is the prefix of commands that the user types.

    `left` are the remaining retries by preemption, infrastructure, failure and request.
    """
    if not jobs:
        print(f"No jobs. To submit one:\n    {command_prefix} run SCRIPT")
        return
    print_table(
        ("job", "script", "state", "exit", "attempt", "retries", "submitted (UTC)"),
        [
            (
                job.record.id,
                f"-m {job.record.script}" if job.record.kind == "module" else job.record.script,
                job.status.state,
                "" if job.status.exit_code is None else str(job.status.exit_code),
                str(job.record.attempt),
                "/".join(str(count) for count in job.retries_left.values()),
                f"{job.record.submitted:%Y-%m-%d %H:%M}",
            )
            for job in jobs
        ],
        numbers=("exit", "attempt"),
    )
