"""`explain`: why a job ended, from its records in the bucket and the state of its machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tpuctl.errors import TpuctlError
from tpuctl.flows.attempt_outcome import inspect_machines, read_log_tails
from tpuctl.flows.attempts import read_attempts
from tpuctl.flows.context import Context
from tpuctl.flows.jobs import read_status as status_of
from tpuctl.jobs.logs import worker_records
from tpuctl.model.explanation import Explanation, relevant_lines
from tpuctl.model.failures import Machines, classify
from tpuctl.model.job import JobRecord, WorkerRecord, job_status, lost_worker
from tpuctl.model.local_module import find_module, module_hint

__all__ = ["explain"]


async def explain(context: Context, record: JobRecord) -> Explanation:
    """Explain why the attempt ended; no failure if it is running or succeeded.

    Does not connect to the machines, which may be gone. Workers recorded as running on machines
    that are gone count as lost.
    """
    store = context.store
    workers = await worker_records(store, record)
    hangs = {number: worker.hang for number, worker in workers.items() if worker.hang is not None}
    status = await status_of(store, record)
    attempts = tuple(await read_attempts(store, record.at(1)))
    machines = await _machines(context, record)
    if status.exit_code is None and machines is not None and _is_gone(machines):
        workers = _with_lost(record, workers)
        status = job_status(record, workers)
    if status.exit_code is None or status.state == "succeeded":
        return Explanation(
            record, status, attempts=attempts, is_unqueried=machines is None, hangs=hangs
        )
    logs = await read_log_tails(store, record, workers)
    failure = classify(workers, logs, machines or Machines())
    if failure is not None and failure.name == "import":
        module = find_module(failure.detail, context.stack.folder)
        if module is not None:
            cause, hint = module_hint(module, Path())
            failure = replace(failure, name="own-module", cause=cause, hint=hint)
    worker = failure.worker if failure is not None else status.worker
    end = logs.get(record.workers[0] if worker is None else worker, b"")
    return Explanation(
        record,
        status,
        failure,
        relevant_lines(end, failure.detail if failure is not None else ""),
        attempts,
        machines is None,
        hangs,
    )


async def _machines(context: Context, record: JobRecord) -> Machines | None:
    """None if the cloud cannot be read; the log is explained anyway."""
    try:
        return await inspect_machines(context.stack, context.cloud, record)
    except TpuctlError:
        return None


def _is_gone(machines: Machines) -> bool:
    return machines.is_replaced or machines.state in (
        *("", "PREEMPTED", "TERMINATED", "DELETING", "STOPPED", "STOPPING"),
        *("SUSPENDING", "SUSPENDED", "FAILED"),
    )


def _with_lost(record: JobRecord, workers: Mapping[int, WorkerRecord]) -> dict[int, WorkerRecord]:
    return {
        worker: workers[worker]
        if worker in workers and workers[worker].has_ended
        else lost_worker(
            record, worker, f"worker {record.worker_name(worker)} is gone and left no final record"
        )
        for worker in record.workers
    }
