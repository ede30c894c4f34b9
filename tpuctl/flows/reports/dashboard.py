"""`dashboard`: the state of a stack and one of its jobs, queried while somebody looks."""

from __future__ import annotations

import asyncio

from tpuctl.errors import Diagnostic, TpuctlError
from tpuctl.flows.context import Context
from tpuctl.flows.reports.report import RunReader
from tpuctl.flows.reports.status import StackWatch
from tpuctl.model.jobs.report import RunReport
from tpuctl.model.logs.log_tail import LogTail
from tpuctl.model.status.dashboard import DashboardState
from tpuctl.model.status.snapshot import JobSnapshot, Snapshot
from tpuctl.model.status.timeline import Timeline


class Dashboard:
    """Answers any number of requests with at most one query of the cloud per `seconds`.

    Logs are read from the bucket, so that it needs no connection to the machines.
    """

    def __init__(self, context: Context, seconds: float) -> None:
        self._context = context
        self._seconds = seconds
        self._watch = StackWatch(context, reaches_machines=False)
        self._snapshot: Snapshot | None = None
        self._queried_at = 0.0
        self._readers: dict[str, _JobReader] = {}
        self._timeline = Timeline()
        self._lock = asyncio.Lock()

    async def state(self, job: str = "") -> DashboardState:
        """The state, with the job of this id, by default a running one, otherwise the latest.

        The first call raises its errors; later ones report them next to the last good state.
        """
        async with self._lock:
            snapshot = await self._take_snapshot()
            selected = _select(snapshot, job)
            if selected is None:
                return DashboardState(
                    snapshot, None, None, self._timeline.entries, snapshot.problem
                )
            reader = self._readers.setdefault(selected.record.id, _JobReader(self._context))
            problem = await reader.update(selected)
            if reader.report is not None:
                self._timeline.observe_attempts(reader.report)
            return DashboardState(
                snapshot,
                reader.report,
                reader.log_tail,
                self._timeline.entries,
                snapshot.problem or problem,
            )

    async def _take_snapshot(self) -> Snapshot:
        clock = self._context.clock
        if self._snapshot is None or clock.now() - self._queried_at >= self._seconds:
            self._snapshot = await self._watch.poll()
            self._queried_at = clock.now()
            self._timeline.observe(self._snapshot)
        return self._snapshot


class _JobReader:
    """The latest report of a job."""

    def __init__(self, context: Context) -> None:
        self.report: RunReport | None = None
        self._reader = RunReader(context)
        self._source: JobSnapshot | None = None  # that the report was read after

    @property
    def log_tail(self) -> LogTail:
        return self._reader.log_tail

    async def update(self, job: JobSnapshot) -> Diagnostic | None:
        """Read the report again if it may have changed; returns why it could not."""
        has_ended = job.status.exit_code is not None
        if self._source is job or (has_ended and self._source == job):
            return None
        try:
            self.report = await self._reader.read(job.record)
        except TpuctlError as error:
            return error.diagnostics[0]
        self._source = job
        return None


def _select(snapshot: Snapshot, job: str) -> JobSnapshot | None:
    by_id = {entry.record.id: entry for entry in snapshot.recent_jobs}
    return by_id.get(job) or next(iter(snapshot.jobs), None)
