"""Run the jobs of a stack's queue, one after another, until it is empty.

The stack's controller does this; another computer can do it as well, at the same time. All state is
in the bucket: a program that was killed is followed by one that goes on where it was, and of
several that start the same job exactly one does.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from tpuctl.cloud.objects import ObjectInfo, ObjectStore
from tpuctl.errors import Conflict, NoCapacity, NotFound, TimedOut, TpuctlError, Usage
from tpuctl.flows.context import Context
from tpuctl.flows.jobs.attempts import (
    claim_start,
    is_stop_requested,
    read_record,
    record_end,
    with_start,
)
from tpuctl.flows.jobs.chip_holder import require_free_chips
from tpuctl.flows.jobs.job_start import record_not_started
from tpuctl.flows.jobs.jobs import in_submitted_order, running_jobs
from tpuctl.flows.jobs.recover import (
    RecoveryAborted,
    follow_to_end,
    restore_stack,
    start_claimed,
)
from tpuctl.flows.jobs.submission import Submission, bind_to_nodes, stack_of
from tpuctl.flows.machines.handover import queued_stack_files
from tpuctl.flows.machines.inventory import stack_on
from tpuctl.flows.machines.workers import connections, kept_connections, ordered_nodes
from tpuctl.flows.stack.activity import reported
from tpuctl.flows.stack.controller_down import down_from_controller
from tpuctl.flows.stack.down import down
from tpuctl.model.events import Note, WarningIssued, ignore
from tpuctl.model.jobs.job import EXIT_LOST, EXIT_STOPPED, JobRecord
from tpuctl.model.jobs.queue import JobEnd, JobStart, QueuePlace, in_order, open_jobs
from tpuctl.model.stack.stack import Stack, stack_of_text
from tpuctl.model.stack.stack_text import parse_stack_text
from tpuctl.model.text.names import JOBS, turn_name
from tpuctl.polling import cancel
from tpuctl.resources.project.stack_record import read_contents
from tpuctl.user_account import user_at_host

READERS = 16
STOP_SECONDS = 10.0  # between looks for a request to stop the job that waits for its TPU
KEPT = timedelta(hours=1)  # of a stack file that no job uses yet
STEPS = f"{JOBS}/*/{{job,start,ended}}.json"


async def run_queue(context: Context) -> int:
    """Run the queued jobs to their ends; return how many there were. Then take the stack down, if
    one of them was submitted with that.

    Raises what prevents the next job from being started, other than missing capacity. A job that
    cannot be started, or whose search for capacity has reached its deadline or a limit, ends, and
    the next one runs.
    """
    queue = Queue(context.store, context.stack.name)
    async with reported(context) as work:
        count = await run_each(queue, partial(_run, work))
        is_down_due = await queue.is_down_due()
        if is_down_due:
            await _wait_for_others(work)
        await queue.remove_stack_files()
    if is_down_due:  # it may end this program
        await (down_from_controller(context) if context.controller else down(context))
    return count


async def run_each(queue: Queue, run: Callable[[JobRecord], Awaitable[None]]) -> int:
    """Run each job in its turn until there is none; return how many there were. `run` returns once
    the job's end is recorded."""
    count = 0
    while (record := await queue.next()) is not None:
        count += 1
        await run(record)
    return count


class Queue:
    """The queue of a stack, read from its bucket.

    One job at a time has its turn, in an object that is only replaced once the job has ended: all
    programs that run the queue work on the same job.
    """

    def __init__(self, store: ObjectStore, stack: str) -> None:
        self._store = store
        self._stack = stack
        self._records: dict[str, JobRecord | None] = {}  # None: not of this queue

    async def next(self) -> JobRecord | None:
        """The job whose turn it is, as it was started if it was; None if the queue is empty."""
        while True:
            turn, generation = await self._read_turn()
            waiting = await self.waiting()
            current = next((record for record in waiting if record.id == turn), None)
            if current is None and waiting:
                current = waiting[0]
                try:
                    await self._store.put_bytes(
                        turn_name(self._stack), current.id.encode(), if_generation=generation
                    )
                except Conflict:  # another program was first
                    continue
            return None if current is None else await with_start(self._store, current)

    async def _read_turn(self) -> tuple[str, int]:
        try:
            text, generation = await self._store.get_version(turn_name(self._stack))
        except NotFound:
            return "", 0
        return text.decode(errors="replace"), generation

    async def waiting(self) -> list[JobRecord]:
        """The queued jobs that have not ended, in the order in which they run, as submitted."""
        objects = await self._list()
        is_started = open_jobs(info.name for info in objects)
        jobs = [job for job in in_submitted_order(objects) if job in is_started]
        records: dict[str, JobRecord | None] = {}
        for start in range(0, len(jobs), READERS):
            part = jobs[start : start + READERS]
            records |= dict(zip(part, await asyncio.gather(*map(self._read, part)), strict=True))
        places = [
            QueuePlace(job, number, record.queued.priority, is_started[job])
            for number, (job, record) in enumerate(records.items())
            if record is not None and record.queued is not None
        ]
        in_turn = (records[place.job] for place in in_order(places))
        return [record for record in in_turn if record is not None]

    async def is_down_due(self) -> bool:
        """Whether a job was queued with `down` since the stack was taken down last."""
        contents = await read_contents(self._store, self._stack)
        count = contents.down_count if contents is not None else 0
        for job in reversed(in_submitted_order(await self._list())):
            record = await self._read(job)
            if record is None or record.queued is None or record.placement is None:
                continue
            if record.placement.down_count != count:
                return False
            if record.queued.down:
                return True
        return False

    async def remove_stack_files(self) -> None:
        """Delete the stack files of jobs that have ended, but those that may be about to be used:
        they are written before their jobs."""
        used = {record.queued.stack_file for record in await self.waiting() if record.queued}
        newest = self._store.clock.now() - KEPT
        for info in await queued_stack_files(self._store, self._stack):
            if info.name not in used and info.updated < newest:
                with suppress(NotFound):
                    await self._store.delete(info.name)

    async def _list(self) -> list[ObjectInfo]:
        try:
            return await self._store.list(f"{JOBS}/", STEPS)
        except NotFound:
            return []

    async def _read(self, job: str) -> JobRecord | None:
        """The record of a job of this queue, as submitted; damaged ones are none."""
        if job not in self._records:
            try:
                record = await read_record(self._store, f"{JOBS}/{job}/job.json", JobRecord, id=job)
            except (NotFound, Conflict):
                return None
            is_ours = record.queued is not None and record.stack == self._stack
            self._records[job] = record if is_ours else None
        return self._records[job]


async def _run(context: Context, record: JobRecord) -> None:
    """Run one job to its end, and record that."""
    try:
        job_context = replace(context, stack=await _stack_for(context, record))
        async with kept_connections(job_context) as connected:
            if record.is_waiting:
                try:
                    record = await _start(connected, record)
                except (Conflict, NotFound, Usage) as error:  # no other try would help
                    raise _NeverStarts(error) from error
            connected.emit(Note(f"Job {record.id} has been started."))
            code = await follow_to_end(connected, record, show=context.controller is None)
        detail = ""
    except RecoveryAborted as aborted:
        context.emit(Note(f"Job {record.id} was not started: {aborted}."))
        code, detail = EXIT_STOPPED, str(aborted)
    except _NeverStarts as error:
        code, detail = EXIT_LOST, str(error.cause)
        await _report_end(context, record, error.cause)
    except (NoCapacity, TimedOut) as error:  # the search has reached its deadline, or a limit
        code, detail = error.exit_code, str(error)
        await _report_end(context, record, error)
    end = JobEnd(
        exit_code=code,
        detail=detail,
        ended=context.cloud.server_clock.now(),
        ended_by=user_at_host(),
    )
    await record_end(context.store, record, end)


async def _report_end(context: Context, record: JobRecord, error: TpuctlError) -> None:
    context.emit(WarningIssued(error.diagnostics[0], is_error=True))
    if record.is_waiting:
        await record_not_started(context.store, record, str(error))


class _NeverStarts(Exception):
    """The job cannot be started, now or later: because of its own settings, or what exists."""

    def __init__(self, cause: TpuctlError) -> None:
        super().__init__(str(cause))
        self.cause = cause


async def _stack_for(context: Context, record: JobRecord) -> Stack:
    """The stack that a job was queued for. On another computer than the controller, that of its own
    stack file."""
    queued, stack = record.queued, context.stack
    if context.controller is None or queued is None or not queued.stack_file:
        return stack
    try:
        text = (await context.store.get_bytes(queued.stack_file)).decode()
        content = parse_stack_text(text, context.store.uri(queued.stack_file), stack.folder)
        job_stack = stack_of_text(content, stack.path)
        job_stack.require_valid()
    except (Usage, NotFound, UnicodeDecodeError) as error:
        if record.is_waiting and isinstance(error, TpuctlError):
            raise _NeverStarts(error) from error
        return stack  # it was started: what it needs is in its record
    same = ("project", "name", "bucket")
    if any(getattr(job_stack, field) != getattr(stack, field) for field in same):
        other = Conflict(
            "Stack file of another stack",
            f"{context.store.uri(queued.stack_file)} is not of stack {stack.name}",
            hint=f"Submit the job again:\n    {record.command_line}",
        )
        raise _NeverStarts(other)
    return replace(job_stack, controller_zone=stack.controller_zone)


async def _start(context: Context, record: JobRecord) -> JobRecord:
    """Get the machines ready and start the job, unless another program has; return its record on
    the machines. Raises RecoveryAborted if it was stopped, or the stack taken down."""
    submission = _submission(context, record)
    await require_free_chips(context, submission, lambda _: True)
    await _unless_stopped(context, record, restore_stack(context, record, math.inf))
    async with connections(context) as transports:
        nodes = await ordered_nodes(context)
        stack = stack_on(nodes[0], stack_of(record, context.stack)).on_runtime(nodes[0].runtime)
        submission = await bind_to_nodes(submission.on(stack), stack, context.cloud, nodes)
        machines = submission.machines
        assert machines.placement is not None
        start = JobStart(
            placement=machines.placement,
            worker_count=submission.worker_count,
            workers=submission.workers,
            slices=submission.slices,
            accelerator=machines.accelerator,
            runtime=machines.runtime,
            started=context.cloud.server_clock.now(),
            started_by=user_at_host(),
            write_id=secrets.token_hex(8),
        )
        if not await claim_start(context.store, record, start):
            return await with_start(context.store, record)
        record = record.started(start)
        job_transports = {worker: transports[worker] for worker in record.workers}
        await start_claimed(context, record, submission, job_transports)
        return record


async def _unless_stopped(
    context: Context, record: JobRecord, work: Coroutine[Any, Any, None]
) -> None:
    """Await what may take days, unless the job's stop is requested: then raise RecoveryAborted. A
    request for the TPU may remain, for the next job or a `down`."""
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait({task}, timeout=STOP_SECONDS))[0]:
            if await is_stop_requested(context.store, record):
                raise RecoveryAborted("the job was stopped")
        task.result()
    finally:
        await cancel(task)


def _submission(context: Context, record: JobRecord) -> Submission:
    """The submission for the first attempt, on as many workers as the stack has now."""
    stack = stack_of(record, context.stack)
    sizes = {
        "worker_count": stack.worker_count,
        "workers": stack.job_workers(),
        "slices": stack.slices,
    }
    return Submission.for_retry(record.model_copy(update=sizes), stack, cloud=context.jobs_cloud)


async def _wait_for_others(context: Context) -> None:
    """Wait for jobs that were started without the queue: the stack is not taken from them."""
    quiet = replace(context, emit=ignore)
    while running := [
        record for record in await running_jobs(context.store) if record.stack == context.stack.name
    ]:
        context.emit(Note(f"Waiting for job {running[0].id} before the stack is taken down."))
        await follow_to_end(quiet, running[0], show=False)
