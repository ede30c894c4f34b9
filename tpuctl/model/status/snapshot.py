"""Snapshots of a stack and its jobs."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuctl.errors import Diagnostic, TpuctlError
    from tpuctl.model.jobs.job import JobRecord, JobStatus, WorkerRecord
    from tpuctl.model.logs.progress import Progress
    from tpuctl.model.stack.spending import BudgetUse, Spending
    from tpuctl.model.stack.stack import Stack
    from tpuctl.model.status.activity import Activity
    from tpuctl.model.status.advice import Advice
    from tpuctl.model.status.charges import Charge
    from tpuctl.model.status.inventory import InventoryItem
    from tpuctl.model.status.status import NodeStatus


@dataclass(frozen=True)
class StackStatus:
    """The existing resources of a stack."""

    stack: Stack
    nodes: tuple[NodeStatus, ...]
    bucket: str | None  # its name; None if it does not exist
    others: tuple[InventoryItem, ...] = ()  # requests, controllers, disks and addresses
    inventory: tuple[InventoryItem, ...] = ()  # everything, including nodes and bucket
    at: datetime = field(default_factory=lambda: datetime.now(UTC))  # by Google's clock
    unlisted: Mapping[str, TpuctlError] = field(default_factory=dict)  # by kind: may exist

    @property
    def charges(self) -> tuple[Charge, ...]:
        """The cost of each item, per hour and since its creation."""
        from tpuctl.model.status.charges import charges_of

        return charges_of(self.inventory, self.at)

    @property
    def advice(self) -> tuple[Advice, ...]:
        """Suggested next steps; none if not all of it is known."""
        from tpuctl.model.status.advice import advice_on

        return advice_on(self.inventory) if not self.unlisted else ()


@dataclass(frozen=True)
class JobSnapshot:
    """A job's status, and its progress according to its first worker's log."""

    record: JobRecord
    status: JobStatus
    workers: Mapping[int, WorkerRecord]
    progress: Progress
    logged: datetime | None  # when the bucket's copy of that log last grew


@dataclass(frozen=True)
class Snapshot:
    """A stack with its latest jobs in the order of submission, at time `at`.

    `problem` says why something could not be queried; that part is from the previous snapshot.
    """

    at: datetime
    status: StackStatus
    recent_jobs: tuple[JobSnapshot, ...] = ()
    problem: Diagnostic | None = None
    activity: Activity | None = None  # of its controller, or of another program
    spending: Spending | None = None  # of the stack's limits
    budget: BudgetUse | None = None  # of the project

    @property
    def advice(self) -> tuple[Advice, ...]:
        """Suggested next steps, with regard to a job that has not ended; none if not all of the
        stack is known."""
        from tpuctl.model.status.advice import advice_on

        if self.status.unlisted:
            return ()
        open_jobs = (job.record.id for job in self.jobs if job.status.exit_code is None)
        return advice_on(
            self.status.inventory,
            next(open_jobs, ""),
            is_worked_on=self.activity is not None,
        )

    @property
    def jobs(self) -> tuple[JobSnapshot, ...]:
        """The running jobs, then the latest job."""
        earlier, latest = self.recent_jobs[:-1], self.recent_jobs[-1:]
        return (*(job for job in earlier if job.status.exit_code is None), *latest)
