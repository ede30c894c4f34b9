"""How a stack and its jobs fare, seen once or again and again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tpuctl.api.stack import StackApi
from tpuctl.errors import TpuctlError
from tpuctl.model.snapshot import JobNow, Moment

if TYPE_CHECKING:
    from tpuctl.flows.watching import JobWatch
    from tpuctl.model.explanation import Explanation
    from tpuctl.model.job import JobRecord
    from tpuctl.model.report import RunReport

__all__ = ["InsightApi"]


class InsightApi(StackApi):
    """What is to be known of one stack and its jobs."""

    async def seen(self) -> Moment:
        """The stack and its jobs as they are now, asked of the cloud and the bucket."""
        return await _Watch(self, reaches_machines=False).look()

    async def watch(self, seconds: float) -> AsyncIterator[Moment]:
        """The same every so many seconds, without an end, with news from the machines themselves.

        Raises what keeps the first look from telling anything; later problems are told with what
        was seen last.
        """
        watch = _Watch(self, reaches_machines=self.bare is None)
        try:
            while True:
                yield await watch.look()
                await asyncio.sleep(seconds)
        finally:
            await watch.close()

    async def explain(self, record: JobRecord) -> Explanation:
        """Why the job, as an attempt of it ran it, ended; also after its machines are gone."""
        from tpuctl.flows.explaining import explain

        return await explain(self.stack, self.cloud, self.store, record)

    async def report(self, record: JobRecord) -> RunReport:
        """All that is known of the job: attempts, cost, curves; from its bucket."""
        from tpuctl.flows.reporting import report_on

        return await report_on(self.stack, self.cloud, self.store, record)


class _Watch:
    """Looks, and remembers what it saw for when nothing can be seen."""

    def __init__(self, api: StackApi, *, reaches_machines: bool) -> None:
        self._api = api
        self._reaches_machines = reaches_machines
        self._jobs: JobWatch | None = None
        self._last: Moment | None = None

    async def look(self) -> Moment:
        last = self._last
        jobs, problem = last.jobs if last is not None else (), None
        try:
            status = await self._api.status()
        except TpuctlError as error:
            if last is None:
                raise
            status, problem = last.status, error.diagnostics[0]
        else:
            try:
                jobs = await self._look_at_jobs(status.bucket)
            except TpuctlError as error:
                problem = error.diagnostics[0]
        self._last = Moment(datetime.now(UTC), status, jobs, problem)
        return self._last

    async def _look_at_jobs(self, bucket: str | None) -> tuple[JobNow, ...]:
        from tpuctl.cloud.objects import ObjectStore
        from tpuctl.flows.watching import JobWatch

        if bucket is None:
            return ()
        if self._jobs is None:
            store = ObjectStore(self._api.cloud.client("storage"), bucket)
            reach = self._api.transports if self._reaches_machines else None
            self._jobs = JobWatch(store, reach)
        return tuple(await self._jobs.look())

    async def close(self) -> None:
        if self._jobs is not None:
            await self._jobs.close()
