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
    from tpuctl.model.inventory import InventoryItem
    from tpuctl.model.job import JobRecord, JobStatus, WorkerRecord
    from tpuctl.model.progress import Progress
    from tpuctl.model.stack import Stack
    from tpuctl.model.status import NodeStatus

__all__ = ["JobSnapshot", "Snapshot", "StackStatus"]


@dataclass(frozen=True)
class StackStatus:
    """What exists of a stack."""

    stack: Stack
    nodes: tuple[NodeStatus, ...]
    bucket: str | None  # its name, None where there is none
    others: tuple[InventoryItem, ...] = ()  # requests, controllers, disks and addresses
    inventory: tuple[InventoryItem, ...] = ()  # everything, with nodes and bucket

    @property
    def charges(self) -> tuple[Charge, ...]:
        """What each thing costs now, and has cost since it was made."""
        from tpuctl.model.charges import charges_of

        return charges_of(self.inventory)

    @property
    def advice(self) -> tuple[Advice, ...]:
        """What could be done next."""
        from tpuctl.model.advice import advice_on

        return advice_on(self.inventory)


@dataclass(frozen=True)
class JobSnapshot:
    """A job as it stands, and how far its first worker's log says it is."""

    record: JobRecord
    status: JobStatus
    workers: Mapping[int, WorkerRecord]
    progress: Progress
    logged: datetime | None  # when the bucket's copy of that log last grew


@dataclass(frozen=True)
class Snapshot:
    """A stack with its running jobs and its latest one, as they stood at `at`.

    `problem` is why something of it could not be asked just then: that stands as it was before.
    """

    at: datetime
    status: StackStatus
    jobs: tuple[JobSnapshot, ...] = ()
    problem: Diagnostic | None = None
