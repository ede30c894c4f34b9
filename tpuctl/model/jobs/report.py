"""The report of a run: its attempts, costs and training curves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from tpuctl.model.jobs.attempt import Attempt
from tpuctl.model.jobs.explanation import Explanation
from tpuctl.model.jobs.job import JobRecord, WorkerRecord
from tpuctl.model.logs.curves import Curve


@dataclass(frozen=True)
class AttemptReport:
    """One attempt of the job."""

    record: JobRecord  # of this attempt
    workers: Mapping[int, WorkerRecord]
    restart: Attempt | None  # what ended the attempt before; None for the first
    started: datetime
    ended: datetime | None  # None while it runs, or if unknown
    per_hour: float | None  # US dollars, for all of the stack's resources; None if unknown
    last_seen: datetime | None = None  # without an end: now if it runs, otherwise its last log

    @property
    def hours(self) -> float | None:
        """How long it ran so far, as far as known; None if unknown."""
        until = self.ended or self.last_seen
        return None if until is None else (until - self.started).total_seconds() / 3600

    @property
    def cost(self) -> float | None:
        """The cost while it ran, without the time before and after."""
        return None if self.hours is None or self.per_hour is None else self.hours * self.per_hour


OutcomeName = Literal["wait", "preemptions", "duration", "cost"]


@dataclass(frozen=True)
class ForecastOutcome:
    """A range that was forecast (seconds, US dollars), and what it was in the end."""

    name: OutcomeName
    low: float
    high: float
    actual: float

    @property
    def is_within(self) -> bool:
        return self.low <= self.actual <= self.high


@dataclass(frozen=True)
class RunReport:
    """A job with all data of the report."""

    explanation: Explanation  # the job, its status, and its failure, if any
    accelerator: str  # the stack's TPU type
    runtime: str
    attempts: tuple[AttemptReport, ...]
    curves: tuple[Curve, ...]  # the loss first
    at: datetime  # when the data was read
    log_end: str = ""  # the last lines of the last attempt's log
    is_free: bool = False  # on the local cloud: costs are what Google would charge
    forecast_hours: float | None = None  # of work, that it was forecast for; None without forecast
    outcomes: tuple[ForecastOutcome, ...] = ()  # of the forecast

    @property
    def record(self) -> JobRecord:
        return self.explanation.record

    @property
    def attempt_ends(self) -> tuple[str, ...]:
        """Why each attempt ended, in a sentence; for one that did not fail, the job's state."""
        failure, status = self.explanation.failure, self.explanation.status
        last = status.state.replace("_", " ") if failure is None else failure.cause
        restarts = (attempt.restart for attempt in self.attempts[1:])
        return (*("" if restart is None else restart.verdict.cause for restart in restarts), last)

    @property
    def is_running(self) -> bool:
        return self.explanation.status.exit_code is None

    @property
    def seconds(self) -> float | None:
        """How long its attempts ran so far, as far as known; None if nothing is."""
        hours = [attempt.hours for attempt in self.attempts if attempt.hours is not None]
        return sum(hours) * 3600 if hours else None

    @property
    def last_step(self) -> int | None:
        """The last step of any metric; None if the log tells no steps."""
        steps = [int(curve.all_points[-1][0]) for curve in self.curves if curve.unit == "step"]
        return max(steps, default=None)

    @property
    def steps_per_second(self) -> float | None:
        """Over the whole run, including its preparation; None while it runs."""
        step, seconds = self.last_step, self.seconds
        return step / seconds if not self.is_running and step and seconds else None

    def curve(self, name: str) -> Curve | None:
        return next((curve for curve in self.curves if curve.name == name), None)

    @property
    def cost(self) -> float | None:
        """Total in US dollars so far; None if an attempt's cost is unknown."""
        costs = [attempt.cost for attempt in self.attempts]
        return None if None in costs else sum(cost for cost in costs if cost is not None)
