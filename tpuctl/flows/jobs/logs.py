"""Emit logs: a range of them, filtered by a pattern, prefixed with the worker's name."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from tpuctl.cloud.objects import ObjectStore
from tpuctl.flows.context import Context
from tpuctl.flows.jobs.submission import stack_of
from tpuctl.flows.machines.workers import connections
from tpuctl.jobs.log_lines import LineFilter, LinePrefixer
from tpuctl.jobs.log_position import first_byte
from tpuctl.jobs.logs import WorkerLog
from tpuctl.model.events import Emit, Event, LogChunk, Note
from tpuctl.model.jobs.job import JobRecord
from tpuctl.model.logs.log_range import WHOLE_LOG, LogRange
from tpuctl.model.workers.worker_numbering import ONE_SLICE, WorkerNumbering
from tpuctl.polling import gather_all
from tpuctl.remote.transport import Transport

PARTIAL_LINE_SECONDS = 0.3  # before an incomplete line of one of several workers is shown


async def start_offsets(
    part: LogRange,
    record: JobRecord,
    workers: Sequence[int],
    store: ObjectStore,
    transports: Mapping[int, Transport],
) -> dict[int, int]:
    """The offset at which the range starts in each worker's log."""
    offsets = await gather_all(
        first_byte(part, record, worker, transports.get(worker), store) for worker in workers
    )
    return dict(zip(workers, offsets, strict=True))


async def emit_log(
    context: Context, record: JobRecord, *, all_workers: bool = False, part: LogRange = WHOLE_LOG
) -> None:
    """Emit what an attempt has logged so far on the first worker or on all, or a range of it."""
    workers = record.workers if all_workers else record.workers[:1]
    on_machines = replace(context, stack=stack_of(record, context.stack))
    async with connections(on_machines, required=False) as transports:
        await emit_worker_logs(record, workers, context.store, transports, context.emit, part=part)


async def emit_worker_logs(
    record: JobRecord,
    workers: Sequence[int],
    store: ObjectStore,
    transports: Mapping[int, Transport],
    emit: Emit,
    *,
    part: LogRange = WHOLE_LOG,
) -> None:
    """Emit what these workers have logged so far, one worker after the other."""
    begins = await start_offsets(part, record, workers, store, transports)
    with filter_lines(emit, workers, part, record.numbering) as emit_lines:
        for worker in workers:
            log = WorkerLog(
                record,
                worker,
                transport=transports.get(worker),
                store=store,
                offset=begins[worker],
                report=lambda text: emit(Note(text)),
            )
            async for data in log.current_chunks():
                emit_lines(
                    LogChunk(
                        worker,
                        data,
                        log.offset - len(data),
                        record.attempt,
                        record.numbering.slice_of(worker),
                    )
                )


@contextmanager
def filter_lines(
    emit: Emit,
    workers: Sequence[int],
    part: LogRange,
    numbering: WorkerNumbering = ONE_SLICE,
) -> Iterator[Emit]:
    """An `emit` that keeps the lines matching the range's pattern, and prefixes them with the
    worker if the range asks for it and there are several. Otherwise bytes pass unchanged."""
    several = workers if part.is_named else ()
    with (
        _prefix_lines(emit, several, numbering) as prefixed,
        _matching_lines(prefixed, workers, part) as matching,
    ):
        yield matching


@contextmanager
def _matching_lines(emit: Emit, workers: Sequence[int], part: LogRange) -> Iterator[Emit]:
    if part.pattern is None:
        yield emit
        return
    filters = {worker: LineFilter(part.pattern) for worker in workers}
    ends = dict.fromkeys(workers, 0)

    def emit_matching(event: Event) -> None:
        if not isinstance(event, LogChunk):
            emit(event)
            return
        ends[event.worker] = event.offset + len(event.data)
        if data := filters[event.worker].feed(event.data):
            # The offset to resume from excludes the incomplete line.
            end = ends[event.worker] - filters[event.worker].pending_bytes
            emit(replace(event, data=data, offset=end - len(data)))

    try:
        yield emit_matching
    finally:
        for worker, line_filter in filters.items():
            if data := line_filter.finish():
                emit(LogChunk(worker, data, ends[worker] - len(data)))


@contextmanager
def _prefix_lines(emit: Emit, workers: Sequence[int], numbering: WorkerNumbering) -> Iterator[Emit]:
    if len(workers) <= 1:
        yield emit
        return
    names = LinePrefixer(workers, numbering)
    waiting: dict[int, asyncio.TimerHandle] = {}

    def flush(worker: int) -> None:
        del waiting[worker]
        if data := names.flush(worker):
            emit(LogChunk(worker, data, 0))

    def emit_prefixed(event: Event) -> None:
        if not isinstance(event, LogChunk):
            emit(event)
            return
        worker = event.worker
        if data := names.feed(worker, event.data):
            emit(replace(event, data=data))
        if worker in waiting and (data or not names.is_holding(worker)):
            waiting.pop(worker).cancel()
        if names.is_holding(worker) and worker not in waiting:
            loop = asyncio.get_running_loop()
            waiting[worker] = loop.call_later(PARTIAL_LINE_SECONDS, flush, worker)

    try:
        yield emit_prefixed
    finally:
        for timer in waiting.values():
            timer.cancel()
        for worker in workers:
            if data := names.finish(worker):
                emit(LogChunk(worker, data, 0))
