"""Run a queue on several TPUs at once: those beside the stack's own come up and go by need."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any

from tpuctl.errors import Diagnostic, TpuctlError
from tpuctl.flows.context import Context
from tpuctl.flows.jobs.attempts import with_start
from tpuctl.flows.jobs.recover import RecoveryAborted, restore_stack
from tpuctl.flows.queue.queue import Queue
from tpuctl.flows.stack.controller_down import delete_tpu
from tpuctl.model.events import WarningIssued
from tpuctl.model.jobs.job import JobRecord
from tpuctl.polling import Backoff, cancel

POLL_SECONDS = 30.0  # between looks at what else the queue needs
RETRY_BACKOFF = Backoff(initial=60.0, maximum=600.0)  # of a TPU that cannot be created

Run = Callable[[JobRecord], Awaitable[None]]


async def run_each(queue: Queue, run: Run, number: int = 1) -> int:
    """Run each job in its turn on one TPU until there is none; return how many there were. `run`
    returns once the job's end is recorded."""
    count = 0
    while (record := await queue.next(number)) is not None:
        count += 1
        await run(record)
    return count


async def run_on_all(queue: Queue, run_on: Callable[[int], Coroutine[Any, Any, int]]) -> int:
    """Run the queue on as many TPUs as it needs until it is empty and only the stack's own is left;
    return how many jobs there were. `run_on` runs what there is for the TPU of a number."""
    tasks: dict[int, asyncio.Task[int]] = {}
    count = 0
    try:
        while True:
            numbers = {*await queue.needed(), *await queue.further()} - tasks.keys()
            if further := numbers - {1}:
                await queue.enter(*further)
            tasks |= {number: asyncio.create_task(run_on(number)) for number in numbers}
            if not tasks:
                return count
            await asyncio.wait(
                tasks.values(), timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            for number in [number for number, task in tasks.items() if task.done()]:
                count += tasks.pop(number).result()
    finally:
        for task in tasks.values():
            await cancel(task)


async def run_on_further(context: Context, queue: Queue, number: int, run: Run) -> int:
    """Run jobs on a TPU beside the stack's own as long as there are any for it; then delete it.

    It is created before it gets a job, which others could run meanwhile.
    """
    context = replace(context, stack=context.stack.parallel(number))
    count = 0
    while await _is_ready(context, queue, number):
        record = await queue.next(number)
        if record is not None:
            count += 1
            await run(record)
    await delete_tpu(context)
    await queue.leave(number)
    return count


async def _is_ready(context: Context, queue: Queue, number: int) -> bool:
    """Have the TPU created for the next job, unless one is running there; return False once it is
    not needed."""
    record = (await queue.needed()).get(number)
    if record is None:
        return False
    if not (await with_start(context.store, record)).is_waiting:
        return True
    creating = asyncio.ensure_future(_create(context, record))
    try:
        while not (await asyncio.wait({creating}, timeout=POLL_SECONDS))[0]:
            if number not in await queue.needed():
                return False
        creating.result()
        return True
    finally:
        await cancel(creating)


async def _create(context: Context, record: JobRecord) -> None:
    """Create the TPU; what prevents it, such as quota, may change: the other TPUs go on."""
    reported = ""
    for seconds in RETRY_BACKOFF.delays():
        try:
            await restore_stack(context, record, math.inf)
            return
        except RecoveryAborted:  # as the job's turn will show
            return
        except TpuctlError as error:
            if str(error) != reported:
                reported = str(error)
                context.emit(WarningIssued(_not_created(context, error)))
            await context.clock.sleep(seconds)


def _not_created(context: Context, error: TpuctlError) -> Diagnostic:
    return Diagnostic(
        "TPU not created",
        f"{context.stack.name}: {error}. The other TPUs work on the queue",
        hint="It is tried again while there is work for it.",
    )
