"""`profile`: trace a running job with its framework's profiler."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict, Field

from tpuctl.engine.step import step
from tpuctl.errors import Conflict, RemoteFailed
from tpuctl.flows.context import Context
from tpuctl.flows.jobs.jobs import read_status
from tpuctl.flows.jobs.submission import stack_of
from tpuctl.flows.machines.workers import connections
from tpuctl.model.jobs.job import JobRecord
from tpuctl.model.jobs.profile import Profile
from tpuctl.model.text.record_parsing import Name, parse_answer
from tpuctl.polling import gather_all
from tpuctl.units import counted, decimal_size


class _Traces(BaseModel):
    """What `profiler.py` answers."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    objects: tuple[Name, ...] = Field(max_length=10_000)


async def profile(
    context: Context, record: JobRecord, seconds: float, *, all_workers: bool = False
) -> Profile:
    """Trace the job's processes on its first worker, or on all of them at the same time.

    Raises Conflict if the job is not running, and RemoteFailed if a worker has no profile.
    """
    status = await read_status(context.store, record)
    if status.exit_code is not None:
        raise Conflict(
            "Job is not running",
            f"job {record.id} has ended: {status.state}",
            hint="Trace a job while it runs. To list jobs:\n    tpuctl jobs",
        )
    workers = record.workers if all_workers else record.workers[:1]
    run = f"{datetime.now(UTC):%Y_%m_%d_%H_%M_%S}"
    where = f"{seconds:g} s on {counted(len(workers), 'worker')}"
    on_machines = replace(context, stack=stack_of(record, context.stack))
    async with connections(on_machines) as transports:

        async def trace(worker: int) -> tuple[str, ...]:
            program = f"{record.folder}/profiler.py"
            argv = ["python3", "-S", "-I", program, record.folder, str(seconds), run]
            result = await transports[worker].run(argv)
            if result.exit_code != 0:
                output = result.stderr.decode(errors="replace").strip()
                raise RemoteFailed(
                    "Job cannot be traced",
                    f"worker {record.worker_name(worker)}: {output}",
                    hint="See what the job is doing:\n    tpuctl logs --tail 20",
                )
            where = f"worker {record.worker_name(worker)}"
            return parse_answer(_Traces, result.stdout, where).objects

        with step(context.emit, "job/profile", "trace") as progress:
            progress.report(where)
            names = await gather_all(trace(worker) for worker in workers)
            infos = await gather_all(context.store.stat(name) for group in names for name in group)
            size = sum(info.size for info in infos if info is not None)
            progress.result = f"{where}: {decimal_size(size)}"
    objects = {
        str(worker): tuple(f"gs://{record.bucket}/{name}" for name in group)
        for worker, group in zip(workers, names, strict=True)
    }
    return Profile(record.id, f"{record.output}/profile", objects, size)
