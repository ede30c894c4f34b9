"""`run --each`: how long a sweep may take, and what became of its jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import PurePosixPath

from tpuctl.flows.context import Context
from tpuctl.flows.jobs.jobs import jobs as list_jobs
from tpuctl.flows.jobs.jobs import load_job
from tpuctl.flows.jobs.submission import Submission
from tpuctl.flows.reports.report import report
from tpuctl.model.cost.stack_cost import cost_of
from tpuctl.model.jobs.job import JobRecord
from tpuctl.model.jobs.report import RunReport
from tpuctl.model.jobs.sweep import SweepEstimate

READERS = 8


async def estimate(
    context: Context, submission: Submission, count: int, tpus: int = 1
) -> SweepEstimate:
    """The time that the stack's last successful job of the same program took, for `count` jobs on
    as many TPUs at once."""
    seconds = None
    for job in await list_jobs(context):
        finished = job.status.finished
        if job.status.state == "succeeded" and finished and _is_same(job.record, submission):
            seconds = (finished - job.record.submitted).total_seconds()
            break
    stacks = map(context.stack.parallel, range(1, tpus + 1))
    costs = [cost_of(stack).per_hour for stack in stacks]
    prices = [cost for cost in costs if cost is not None]
    per_hour = sum(prices) if len(prices) == tpus else None
    return SweepEstimate(count, per_hour, seconds, submission.timeout, tpus)


def _is_same(record: JobRecord, submission: Submission) -> bool:
    if record.kind != submission.kind:
        return False
    if submission.script is None:
        return record.script == submission.program
    return PurePosixPath(record.script).name == submission.script.name


async def reports(context: Context, jobs: Sequence[str]) -> list[RunReport]:
    """The report of each job, by its id."""
    semaphore = asyncio.Semaphore(READERS)

    async def read(job: str) -> RunReport:
        async with semaphore:
            return await report(context, await load_job(context.store, job))

    return list(await asyncio.gather(*map(read, jobs)))
