"""`jobs compare`: read jobs and their bundles from the bucket, and compare them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tpuctl.cloud.objects import ObjectStore
from tpuctl.errors import NotFound, Usage
from tpuctl.flows.context import Context
from tpuctl.flows.jobs.jobs import find_job
from tpuctl.flows.reports.sweep import reports
from tpuctl.jobs.archives import read_files
from tpuctl.model.jobs.comparison import ComparedJob, Comparison, compare_jobs
from tpuctl.model.jobs.job import JobRecord

EXAMPLE = "Pass the ids of two or more jobs, or their last words. To list them:\n    tpuctl jobs"


async def compare(context: Context, names: Sequence[str]) -> Comparison:
    """Compare jobs of the stack, by their ids or last words. Raises Usage, NotFound."""
    if len(names) < 2:
        raise Usage("Nothing to compare", "a comparison needs two jobs", hint=EXAMPLE)
    records = await asyncio.gather(*(find_job(context, name) for name in names))
    ids = [record.id for record in records]
    repeated = next((job for job in ids if ids.count(job) > 1), None)
    if repeated is not None:
        raise Usage("Same job twice", f"{repeated} would be compared with itself", hint=EXAMPLE)
    job_reports, files = await asyncio.gather(
        reports(context, ids),
        asyncio.gather(*(_files(context.store, record) for record in records)),
    )
    return compare_jobs([ComparedJob(*job) for job in zip(job_reports, files, strict=True)])


async def _files(store: ObjectStore, record: JobRecord) -> dict[str, str] | None:
    """The files of the job's bundle with their SHA-256; None if the bucket no longer has it."""
    if not record.bundle_name:
        return None
    try:
        return read_files(await store.get_bytes(record.bundle_name))
    except NotFound:
        return None
