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
        "kind": job.record.kind,
        "script": job.record.script,
        "args": list(job.record.args),
        "state": job.status.state,
        "exit_code": job.status.exit_code,
        "detail": job.status.detail,
        "attempt": job.record.attempt,
        "attempts": [
            {
                "number": attempt.number,
                "zone": attempt.placement.zone,
                "node": attempt.placement.node,
                "cause": attempt.verdict.model_dump(
                    mode="json", include={"kind", "name", "cause", "detail"}
                ),
                "started": attempt.started.isoformat(),
                "started_by": attempt.started_by,
            }
            for attempt in job.attempts
        ],
        "retries_left": job.retries_left,
        "workers": list(job.record.workers),
        "submitted": job.record.submitted.isoformat(),
        "submitted_by": job.record.submitted_by,
        "finished": job.status.finished.isoformat() if job.status.finished else None,
        "output": job.record.output,
    }


def show_jobs(jobs: Sequence[JobSummary], command_prefix: str = "tpuctl") -> None:
    """The jobs as a table; `typed` is the prefix of commands that the user types.

    `left` are the remaining retries by preemption, infrastructure and failure.
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
