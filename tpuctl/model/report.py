"""A run as it is told afterwards: its attempts, what they cost, and how its numbers went."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from tpuctl.model.attempt import Attempt
from tpuctl.model.curves import Curve
from tpuctl.model.explanation import Explanation
from tpuctl.model.job import JobRecord, WorkerRecord

__all__ = ["AttemptReport", "RunReport"]


@dataclass(frozen=True)
class AttemptReport:
    """One try at the job."""

    record: JobRecord  # as this attempt ran it
    workers: Mapping[int, WorkerRecord]
    why: Attempt | None  # what ended the attempt before; None for the first
    started: datetime
    ended: datetime | None  # None while it runs, and where nobody knows
    per_hour: float | None  # US dollars for all that the stack has, there; None where unknown

    @property
    def hours(self) -> float | None:
        return None if self.ended is None else (self.ended - self.started).total_seconds() / 3600

    @property
    def cost(self) -> float | None:
        """Of the time it ran; what the machines cost before and after it is not in it."""
        return None if self.hours is None or self.per_hour is None else self.hours * self.per_hour


@dataclass(frozen=True)
class RunReport:
    """A job with everything that is known of it."""

    explanation: Explanation  # the job, how it stands, and why it failed if it did
    accelerator: str  # the stack's TPU type
    runtime: str
    attempts: tuple[AttemptReport, ...]
    curves: tuple[Curve, ...]  # the loss first
    at: datetime  # when all this was read
    log_end: str = ""  # the last lines of the last attempt's log
    is_free: bool = False  # the cloud that it ran on: costs are those of Google

    @property
    def record(self) -> JobRecord:
        return self.explanation.record

    @property
    def cost(self) -> float | None:
        """In US dollars, of all attempts; None where one of them is unknown."""
        costs = [attempt.cost for attempt in self.attempts]
        return None if None in costs else sum(cost for cost in costs if cost is not None)
