"""What the dashboard shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpuctl.errors import Diagnostic
    from tpuctl.model.jobs.report import RunReport
    from tpuctl.model.logs.log_tail import LogTail
    from tpuctl.model.status.snapshot import Snapshot
    from tpuctl.model.status.timeline import TimelineEntry


@dataclass(frozen=True)
class DashboardState:
    """A stack, one of its jobs, and what happened.

    `problem` says why something could not be queried; that part is from an earlier query.
    """

    snapshot: Snapshot
    report: RunReport | None  # None without jobs
    log_tail: LogTail | None  # of the job's last attempt
    timeline: tuple[TimelineEntry, ...]
    problem: Diagnostic | None
