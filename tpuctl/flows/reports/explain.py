"""`explain`: why a job ended, from its records in the bucket and the state of its machines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path

from tpuctl.errors import TpuctlError
from tpuctl.flows.context import Context
from tpuctl.flows.jobs.attempt_outcome import inspect_machines, read_log_tails
from tpuctl.flows.jobs.attempts import read_attempts
from tpuctl.flows.jobs.jobs import read_status as status_of
from tpuctl.flows.jobs.submission import stack_of
from tpuctl.jobs.logs import worker_records
from tpuctl.jobs.upload_rules import find_left_out
from tpuctl.model.jobs.explanation import Explanation, relevant_lines
from tpuctl.model.jobs.failures import Failure, Machines, classify
from tpuctl.model.jobs.hint_commands import about_job
from tpuctl.model.jobs.job import EXIT_TIMED_OUT, JobRecord, WorkerRecord, job_status, lost_worker
from tpuctl.model.logs.log_tail_signatures import last_lines
from tpuctl.model.scripts.local_module import find_module, module_hint

MAX_FOLDERS = 100  # in which the script is looked for
MISSING = {"import", "import-name", "missing-data"}  # names of errors about files and modules


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
    is_local = context.cloud.endpoint.is_local
    failure = classify(workers, logs, machines or Machines(), is_local=is_local)
    if failure is not None and failure.name == "limit" and status.state != "timed_out":
        status = replace(status, state="timed_out", exit_code=EXIT_TIMED_OUT, detail=failure.cause)
    worker = failure.worker if failure is not None else status.worker
    end = logs.get(record.workers[0] if worker is None else worker, b"")
    if failure is not None and failure.name in MISSING:
        failure = _with_left_out(context, record, failure, end) or _with_module(context, failure)
    if failure is not None:
        failure = replace(failure, hint=about_job(failure.hint, record))
    return Explanation(
        record,
        status,
        failure,
        relevant_lines(end, failure.detail if failure is not None else ""),
        attempts,
        machines is None,
        hangs,
    )


def _with_left_out(
    context: Context, record: JobRecord, failure: Failure, log: bytes
) -> Failure | None:
    """The failure with the rule that left out the file that the script did not find, if the
    uploaded folder is that of the stack file, the current one, or directly in one of them."""
    job, text = context.stack.file.job, "\n".join([failure.detail, *last_lines(log)])
    for folder in _folders(record, context.stack.path.parent.resolve(), Path().resolve()):
        missing = find_left_out(text, folder, job.include, job.exclude, record.script)
        if missing is not None:
            name, exclusion = missing
            cause = f"{name} is on this computer, and is not uploaded: {exclusion.rule}."
            return replace(failure, cause=cause, hint=exclusion.remedy)
    return None


def _with_module(context: Context, failure: Failure) -> Failure:
    """The failure with the module of the user's repository that the job did not find, if any."""
    module = find_module(failure.detail, context.stack.folder)
    if module is None:
        return failure
    cause, hint = module_hint(module, Path())
    return replace(failure, name="own-module", cause=cause, hint=hint)


def _folders(record: JobRecord, *around: Path) -> Iterator[Path]:
    """The folders that may have been uploaded for a job."""
    for folder in dict.fromkeys(around):
        if record.kind != "script":  # the job ran in the current folder
            yield folder
            continue
        below = islice((path for path in folder.iterdir() if path.is_dir()), MAX_FOLDERS)
        yield from (path for path in (folder, *below) if (path / record.script).is_file())


async def _machines(context: Context, record: JobRecord) -> Machines | None:
    """None if the cloud cannot be read; the log is explained anyway."""
    try:
        return await inspect_machines(stack_of(record, context.stack), context.cloud, record)
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
