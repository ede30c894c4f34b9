"""`report`: read a run from the bucket: attempts, cost, and the metrics in its logs."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime

from tpuctl.cloud.objects import ObjectStore
from tpuctl.errors import NotFound
from tpuctl.flows.context import Context
from tpuctl.flows.explain import explain
from tpuctl.flows.jobs import load_job
from tpuctl.jobs.logs import WorkerLog, worker_records
from tpuctl.model.attempt import Attempt
from tpuctl.model.curves import Curves
from tpuctl.model.explanation import CONTROL
from tpuctl.model.job import JobRecord
from tpuctl.model.report import AttemptReport, RunReport
from tpuctl.model.stack import Stack
from tpuctl.model.stack_cost import cost_of

__all__ = ["report"]

LOG_TAIL_BYTES = 1 << 14  # end of the last log
LOG_LINES = 40


async def report(context: Context, record: JobRecord) -> RunReport:
    """Everything known about a job, from its bucket and the state of its machines. The metrics
    are those of each attempt's first worker, concatenated.
    """
    stack, store = context.stack, context.store
    explanation = await explain(context, record)
    curves, end = Curves(), b""
    attempts = []
    attempt_records: list[Attempt | None] = [None, *explanation.attempts]
    for attempt in attempt_records:
        attempt_record = await load_job(store, record.id, 1 if attempt is None else attempt.number)
        attempts.append(await _attempt(stack, store, attempt_record, attempt))
        end = await _read_log(store, attempt_record, curves)
    return RunReport(
        explanation,
        stack.file.tpu.type,
        stack.runtime.version,
        tuple(attempts),
        curves.nonempty(),
        datetime.now(UTC),
        _last_lines(end),
        is_free=context.cloud.endpoint.is_local,
    )


async def _attempt(
    stack: Stack, store: ObjectStore, record: JobRecord, attempt: Attempt | None
) -> AttemptReport:
    workers = await worker_records(store, record)
    job_workers = [workers[number] for number in record.workers if number in workers]
    ended = [worker.finished for worker in job_workers]
    return AttemptReport(
        record,
        workers,
        attempt,
        min((worker.started for worker in job_workers), default=record.submitted),
        max((time for time in ended if time is not None), default=None)
        if None not in ended
        else None,
        cost_of(stack.in_zone(record.zone)).per_hour,
    )


async def _read_log(store: ObjectStore, record: JobRecord, curves: Curves) -> bytes:
    """Feed the first worker's log to the curves; return its end."""
    end = b""
    log = WorkerLog(record, record.workers[0], transport=None, store=store)
    with suppress(NotFound):
        async for data in log.current_chunks():
            curves.feed(data)
            end = (end + data)[-LOG_TAIL_BYTES:]
    curves.end()
    return end


def _last_lines(end: bytes) -> str:
    text = CONTROL.sub("", end.decode("utf-8", "replace").replace("\r", "\n"))
    return "\n".join(line.rstrip() for line in text.split("\n")[-LOG_LINES:]).strip("\n")
