"""A stack and its jobs as they stood at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from tpuctl.errors import Diagnostic
    from tpuctl.model.advice import Advice
    from tpuctl.model.charges import Charge
    from tpuctl.model.inventory import Found
    from tpuctl.model.job import JobRecord, JobStatus, WorkerRecord
    from tpuctl.model.progress import Progress
    from tpuctl.model.stack import Stack
    from tpuctl.model.status import NodeStatus

__all__ = ["JobNow", "Moment", "StackStatus"]


@dataclass(frozen=True)
class StackStatus:
    """What exists of a stack."""

    stack: Stack
    nodes: tuple[NodeStatus, ...]
    bucket: str | None  # its name, None where there is none
    others: tuple[Found, ...] = ()  # requests, controllers, disks and addresses
    found: tuple[Found, ...] = ()  # everything, with nodes and bucket

    @property
    def charges(self) -> tuple[Charge, ...]:
        """What each thing costs now, and has cost since it was made."""
        from tpuctl.model.charges import charges_of

        return charges_of(self.found)

    @property
    def advice(self) -> tuple[Advice, ...]:
        """What could be done next."""
        from tpuctl.model.advice import advice_on

        return advice_on(self.found)


@dataclass(frozen=True)
class JobNow:
    """A job as it stands, and how far its first worker's log says it is."""

    record: JobRecord
    status: JobStatus
    workers: Mapping[int, WorkerRecord]
    progress: Progress
    logged: datetime | None  # when the bucket's copy of that log last grew


@dataclass(frozen=True)
class Moment:
    """A stack with its running jobs and its latest one, as they stood at `at`.

    `problem` is why something of it could not be asked just then: that stands as it was before.
    """

    at: datetime
    status: StackStatus
    jobs: tuple[JobNow, ...] = ()
    problem: Diagnostic | None = None
