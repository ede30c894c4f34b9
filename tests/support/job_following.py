"""Following a job to its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tpuctl.cloud.objects import ObjectStore
from tpuctl.flows.jobs.follow import follow_attempt, report_result
from tpuctl.model.events import Emit
from tpuctl.model.jobs.job import JobRecord
from tpuctl.remote.transport import Transport


async def follow(
    record: JobRecord,
    store: ObjectStore | None,
    transports: Mapping[int, Transport],
    emit: Emit,
    **options: Any,
) -> int:
    """The exit code of a job with one attempt, whose log and result are emitted."""
    return report_result(await follow_attempt(record, store, transports, emit, **options), emit)
