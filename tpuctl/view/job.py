"""Jobs on stdout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tpuctl.view.tables import print_table

if TYPE_CHECKING:
    from tpuctl.model.job import JobSummary

__all__ = ["job_data", "show_jobs"]


def job_data(job: JobSummary) -> dict[str, Any]:
    return {
        "id": job.record.id,
        "script": job.record.script,
        "args": list(job.record.args),
        "state": job.status.state,
        "exit_code": job.status.exit_code,
        "detail": job.status.detail,
        "attempt": job.record.attempt,
        "workers": list(job.record.workers),
        "submitted": job.record.submitted.isoformat(),
        "submitted_by": job.record.submitted_by,
        "finished": job.status.finished.isoformat() if job.status.finished else None,
        "output": job.record.output,
    }


def show_jobs(jobs: Sequence[JobSummary], typed: str = "tpuctl") -> None:
    """The jobs as a table; `typed` is how the user starts another command."""
    if not jobs:
        print(f"No job yet. Submit one with\n    {typed} run SCRIPT")
        return
    print_table(
        ("job", "script", "state", "exit", "submitted (UTC)"),
        [
            (
                job.record.id,
                job.record.script,
                job.status.state,
                "" if job.status.exit_code is None else str(job.status.exit_code),
                f"{job.record.submitted:%Y-%m-%d %H:%M}",
            )
            for job in jobs
        ],
        numbers=("exit",),
    )
