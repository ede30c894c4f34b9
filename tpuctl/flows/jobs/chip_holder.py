"""The job that uses the machines' chips: a TPU runs one program at a time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath

from tpuctl.engine.step import step
from tpuctl.errors import Conflict, TpuctlError
from tpuctl.flows.context import Context
from tpuctl.flows.jobs.attempts import is_stop_requested
from tpuctl.flows.jobs.jobs import describe_job, load_job
from tpuctl.flows.jobs.recover import follow_to_end
from tpuctl.flows.jobs.run_state import Decision
from tpuctl.flows.jobs.submission import Submission
from tpuctl.flows.machines.workers import connections
from tpuctl.jobs.launch import supervisor_command
from tpuctl.jobs.logs import parse_worker
from tpuctl.model.events import ignore
from tpuctl.model.jobs.job import JobRecord
from tpuctl.remote.transport import Transport

# Prints the folders of attempts that have not ended, as far as their records say.
OPEN_RECORDS = """
grep -lE '"state": "(preparing|ready|running)"' .tpuctl/jobs/*/*/record.json 2>/dev/null
true
"""


async def require_free_chips(context: Context, submission: Submission, waits: Decision) -> None:
    """Return once no other job uses the chips that the submission needs.

    Raises Conflict if one does, unless its stop was requested or `waits` decides to wait for its
    end. A notebook is no such job: its server needs no chips, and if a kernel has taken them, the
    new job says so.
    """
    if submission.kind == "notebook":
        return
    while (record := await _find_holder(context, submission)) is not None:
        description = describe_job(record, context.cloud.server_clock.now())
        if not (await is_stop_requested(context.store, record) or waits(description)):
            raise Conflict(
                "TPU in use",
                f"it runs one job at a time, and one is running\n{description}",
                hint="To start this one when the other has ended, add --wait. Or stop the other:\n"
                f"    tpuctl stop {record.id}",
            )
        with step(context.emit, "job/earlier", "wait for") as progress:
            progress.report(description)
            await follow_to_end(replace(context, emit=ignore), record, show=False)
            progress.result = f"{record.id} has ended"


async def _find_holder(context: Context, submission: Submission) -> JobRecord | None:
    """None also if the machine cannot be asked, such as before the stack's first `up`: the steps
    that need it report the cause."""
    try:
        return await _holder(context, submission)
    except TpuctlError:
        return None


async def _holder(context: Context, submission: Submission) -> JobRecord | None:
    """The job that runs on the first of the submission's workers, as that machine says."""
    worker = submission.workers[0]
    async with connections(context, required=False) as transports:
        if worker not in transports:
            return None
        transport = transports[worker]
        result = await transport.run(["sh", "-c", OPEN_RECORDS])
        for line in result.stdout.decode(errors="replace").splitlines():
            job, attempt = PurePosixPath(line).parts[-3:-1]
            try:
                record = await load_job(context.store, job, int(attempt))
            except (TpuctlError, ValueError):  # not in the bucket, or damaged
                continue
            if record.kind != "notebook" and await _is_running(record, worker, transport):
                return record
    return None


async def _is_running(record: JobRecord, worker: int, transport: Transport) -> bool:
    """Whether the attempt has not ended; its supervisor, which may have to be restarted, knows."""
    result = await transport.run(supervisor_command(record, "status"))
    if result.exit_code != 0:
        return False
    return not parse_worker(record, worker, result.stdout, f"worker {transport.name}").has_ended
