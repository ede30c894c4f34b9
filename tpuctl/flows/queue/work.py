"""Run the jobs of a stack's queue until it is empty, each TPU one after another.

The stack's controller does this; another computer can do it as well, at the same time. All state is
in the bucket: a program that was killed is followed by one that goes on where it was, and of
several that start the same job exactly one does.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Coroutine
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from tpuctl.cloud.caller_identity import acting_user
from tpuctl.errors import Conflict, NoCapacity, NotFound, TimedOut, TpuctlError, Usage
from tpuctl.flows.context import Context
from tpuctl.flows.jobs.attempts import (
    claim_start,
    is_stop_requested,
    record_end,
    with_start,
)
from tpuctl.flows.jobs.chip_holder import require_free_chips
from tpuctl.flows.jobs.job_start import record_not_started
from tpuctl.flows.jobs.jobs import running_jobs
from tpuctl.flows.jobs.recover import (
    RecoveryAborted,
    follow_to_end,
    restore_stack,
    start_claimed,
)
from tpuctl.flows.jobs.submission import Submission, bind_to_nodes, stack_of
from tpuctl.flows.machines.controller import find_controller
from tpuctl.flows.machines.inventory import is_tpu_of, list_resources, stack_on
from tpuctl.flows.machines.workers import connections, kept_connections, ordered_nodes
from tpuctl.flows.queue.parallel import run_each, run_on_all, run_on_further
from tpuctl.flows.queue.queue import Queue
from tpuctl.flows.stack.activity import reported
from tpuctl.flows.stack.controller_down import down_from_controller
from tpuctl.flows.stack.down import down
from tpuctl.model.events import Note, WarningIssued, ignore
from tpuctl.model.jobs.job import EXIT_LOST, EXIT_STOPPED, JobRecord
from tpuctl.model.jobs.queue import JobEnd, JobStart
from tpuctl.model.stack.stack import Stack, stack_of_text
from tpuctl.model.stack.stack_text import parse_stack_text
from tpuctl.polling import cancel
from tpuctl.resources.machines.controller import Controller
from tpuctl.resources.machines.disk import DataDisk
from tpuctl.resources.network.nat import Nat

STOP_SECONDS = 10.0  # between looks for a request to stop the job that waits for its TPU


async def run_queue(context: Context) -> int:
    """Run the queued jobs to their ends; return how many there were. Then take the stack down, if
    one of them was submitted with that.

    Raises what prevents the next job from being started, other than missing capacity. A job that
    cannot be started, or whose search for capacity has reached its deadline or a limit, ends, and
    the next one runs.
    """
    queue = Queue(context.store, context.stack.name)
    async with reported(context) as work:
        count = await run_on_all(queue, partial(_run_on, work, queue))
        is_down_due = await queue.is_down_due(partial(_has_charged_since, work))
        if is_down_due:
            await _wait_for_others(work)
        await queue.remove_stack_files()
    if is_down_due:  # it may end this program
        await (down_from_controller(context) if context.controller else down(context))
    return count


async def _has_charged_since(context: Context, time: datetime) -> bool:
    """Whether something that is charged by the hour was created before a time, and still exists."""
    stack, cloud = context.stack, context.cloud
    if context.controller is None:
        items = await list_resources(
            cloud,
            stack.project,
            stack=stack.name,
            include=lambda kind: is_tpu_of(kind, stack) or kind in (Controller, DataDisk, Nat),
        )
        created = [item.created for item in items]
    else:  # which may list no more, and is deleted last
        machine = await find_controller(stack, cloud)
        created = [machine.created]
    return any(each is not None and each < time for each in created)


async def _run_on(context: Context, queue: Queue, number: int) -> int:
    run = partial(_run, context, number)
    if number == 1:
        return await run_each(queue, run)
    return await run_on_further(context, queue, number, run)


async def _run(context: Context, number: int, record: JobRecord) -> None:
    """Run one job to its end, on the stack's TPU of this number, and record that."""
    try:
        stack = await _stack_for(context, record)
        job_context = replace(context, stack=stack.parallel(number))
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
        ended_by=acting_user(context.cloud),
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
            started_by=acting_user(context.cloud),
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
