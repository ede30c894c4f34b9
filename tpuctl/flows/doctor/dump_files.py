"""`debug-dump`: what the bucket and the machines have about a job, and writing the archive."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from tpuctl.errors import Conflict, TpuctlError
from tpuctl.flows.context import Context
from tpuctl.flows.jobs.jobs import SeveralRunning, find_job
from tpuctl.flows.machines.workers import connections
from tpuctl.jobs.logs import worker_records
from tpuctl.model.jobs.job import JobRecord, WorkerRecord
from tpuctl.model.troubleshooting.debug_dump import Dump, DumpFile
from tpuctl.polling import gather_all
from tpuctl.remote.ssh import SshTransport

MAX_LOGS = 8  # workers whose logs are included, failed ones first
LOG_BYTES = 1 << 16  # the end of each log


def require_absent(path: Path) -> None:
    """Raises Conflict if the file exists, before anything is collected for it."""
    if os.path.lexists(path):
        raise Conflict(
            "File already exists",
            f"{path} exists and is not overwritten",
            hint="Pass another file:\n    tpuctl debug-dump --output FILE",
            where="--output",
        )


def write_dump(dump: Dump, path: Path) -> None:
    """Write the archive, readable by the user only. Raises Conflict if the file exists."""
    require_absent(path)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:  # also if it was created just now
        raise _cannot_write(path, error) from error
    try:
        with open(handle, "wb") as file:  # noqa: PTH123
            file.write(dump.archive())
    except OSError as error:
        path.unlink(missing_ok=True)
        raise _cannot_write(path, error) from error


def _cannot_write(path: Path, error: OSError) -> TpuctlError:
    return TpuctlError(
        "Cannot write archive",
        f"{path}: {error.strerror}",
        hint="Pass another file:\n    tpuctl debug-dump --output FILE",
        where="--output",
    )


async def job_files(context: Context, name: str) -> list[DumpFile]:
    """The job's record, its workers' records and the ends of their logs, from the bucket.

    It works after the machines are deleted. Raises NotFound without a job.
    """
    record = await _job(context, name)
    workers = await worker_records(context.store, record)
    files = [DumpFile("job/job.json", "the job's record", _json(record.model_dump_json()))]
    files += [
        DumpFile(
            f"job/worker-{number}.json",
            f"worker {record.worker_name(number)}'s record",
            _json(worker.model_dump_json()),
        )
        for number, worker in sorted(workers.items())
    ]
    logs = await gather_all(
        _log_end(context, record, number) for number in _logged_workers(record, workers)
    )
    return [*files, *(log for log in logs if log is not None)]


async def _job(context: Context, name: str) -> JobRecord:
    try:
        return await find_job(context, name)
    except SeveralRunning as error:
        return error.jobs[0]


def _logged_workers(record: JobRecord, workers: Mapping[int, WorkerRecord]) -> list[int]:
    """The workers whose logs are included: those that failed by themselves come first."""
    causes = {number: worker.cause for number, worker in workers.items()}
    is_consequence = {number: causes.get(number, "") in ("", "worker") for number in record.workers}
    return sorted(record.workers, key=lambda number: (is_consequence[number], number))[:MAX_LOGS]


async def _log_end(context: Context, record: JobRecord, worker: int) -> DumpFile | None:
    store, name = context.store, record.log_name(worker)
    info = await store.stat(name)
    if info is None:
        return None
    data = await store.read_range(name, max(0, info.size - LOG_BYTES), LOG_BYTES)
    about = f"worker {record.worker_name(worker)}'s log" + (
        ", its end" if info.size > LOG_BYTES else ""
    )
    return DumpFile(f"job/worker-{worker}.log", about, data.decode(errors="replace"))


async def supervisor_files(context: Context, name: str) -> list[DumpFile]:
    """What the supervisors on the machines logged about themselves. Raises NotFound if there is
    nothing to read: no machine, or no job."""
    record = await _job(context, name)
    async with connections(context) as transports:
        logs = await gather_all(
            _supervisor_log(transports[number], record, number)
            for number in record.workers[:MAX_LOGS]
            if number in transports
        )
    return [log for log in logs if log is not None]


async def _supervisor_log(
    transport: SshTransport, record: JobRecord, worker: int
) -> DumpFile | None:
    path = f"{record.folder}/supervisor.log"
    result = await transport.run(["tail", "-c", str(LOG_BYTES), path])
    if result.exit_code != 0:
        return None
    text = result.stdout.decode(errors="replace")
    about = f"worker {record.worker_name(worker)}'s supervisor"
    return DumpFile(f"job/worker-{worker}-supervisor.log", about, text)


def _json(text: str) -> str:
    return json.dumps(json.loads(text), indent=2, ensure_ascii=False) + "\n"
