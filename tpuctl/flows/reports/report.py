"""`report`: read a run from the bucket: attempts, cost, and the metrics in its logs."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from tpuctl.cloud.objects import ObjectStore
from tpuctl.errors import NotFound, TpuctlError
from tpuctl.flows.context import Context
from tpuctl.flows.jobs.jobs import load_job
from tpuctl.flows.jobs.submission import stack_of
from tpuctl.flows.reports.explain import explain
from tpuctl.flows.stack.forecast import attempts_for
from tpuctl.jobs.logs import WorkerLog, worker_records
from tpuctl.model.capacity.forecast_outcome import outcome_of
from tpuctl.model.cost.stack_cost import cost_of
from tpuctl.model.jobs.attempt import Attempt
from tpuctl.model.jobs.job import JobRecord
from tpuctl.model.jobs.report import AttemptReport, RunReport
from tpuctl.model.logs.curves import Curves
from tpuctl.model.logs.log_tail import LogTail
from tpuctl.model.stack.stack import Stack
from tpuctl.resources.project.stack_record import Record

LOG_LINES = 40  # of the report
MAX_LOG_LINES = 500  # kept


async def report(context: Context, record: JobRecord) -> RunReport:
    """Everything known about a job, from its bucket and the state of its machines. The metrics
    are those of each attempt's first worker, concatenated.
    """
    return await RunReader(context).read(record)


class RunReader:
    """Reads reports of one job; a later one reads only what its logs have gained."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._curves = Curves()
        self._log: WorkerLog | None = None
        self.log_tail = LogTail(MAX_LOG_LINES)  # of the last attempt's first worker

    async def read(self, record: JobRecord) -> RunReport:
        stack, store = self._context.stack, self._context.store
        explanation = await explain(self._context, record)
        now = self._context.cloud.server_clock.now()
        attempts = []
        attempt_records: list[Attempt | None] = [None, *explanation.attempts]
        for attempt in attempt_records:
            number = 1 if attempt is None else attempt.number
            attempt_record = await load_job(store, record.id, number)
            attempts.append(await _attempt(stack, store, attempt_record, attempt))
            await self._read_log(store, attempt_record)
        if explanation.status.exit_code is None:
            attempts[-1] = replace(attempts[-1], last_seen=now)
        else:
            self._curves.end()
        run_report = RunReport(
            explanation,
            record.accelerator or stack.file.tpu.type,
            stack.runtime.version,
            tuple(attempts),
            self._curves.nonempty(),
            now,
            self.log_tail.text(LOG_LINES),
            is_free=self._context.cloud.endpoint.is_local,
        )
        return await self._with_forecast(run_report)

    async def _with_forecast(self, run_report: RunReport) -> RunReport:
        """With what came of the forecast in the stack's record, if it was made for this job."""
        contents = None
        with suppress(TpuctlError):
            contents = await Record(self._context.stack, self._context.cloud).read()
        if contents is None or contents.forecast is None:
            return run_report
        attempts = attempts_for(self._context.stack, contents.capacity)
        outcomes = outcome_of(contents.forecast, run_report, attempts)
        return replace(run_report, forecast_hours=contents.forecast.hours, outcomes=outcomes)

    async def _read_log(self, store: ObjectStore, record: JobRecord) -> None:
        """Read what the first worker's log has gained; earlier attempts gain nothing."""
        if self._log is None or self._log.job.attempt < record.attempt:
            self._curves.end()
            self._log = WorkerLog(record, record.workers[0], transport=None, store=store)
            self.log_tail = LogTail(MAX_LOG_LINES)
        if self._log.job.attempt == record.attempt:
            with suppress(NotFound):
                async for data in self._log.current_chunks():
                    self._curves.feed(data)
                    self.log_tail.feed(data)


async def _attempt(
    stack: Stack, store: ObjectStore, record: JobRecord, attempt: Attempt | None
) -> AttemptReport:
    workers = await worker_records(store, record)
    job_workers = [workers[number] for number in record.workers if number in workers]
    ends = [worker.finished for worker in job_workers]
    ended = None if None in ends else max(filter(None, ends), default=None)
    log = None if ended else await store.stat(record.log_name(record.workers[0]))
    return AttemptReport(
        record,
        workers,
        attempt,
        min((worker.started for worker in job_workers), default=record.submitted),
        ended,
        cost_of(stack_of(record, stack)).per_hour,
        None if log is None else log.updated,
    )
