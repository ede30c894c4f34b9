"""The forecast of a hunt: how long it waits, how often it is preempted, and what it costs.

From a trace of capacity by trying many moments at which it could have begun, and from the requests
that this computer remembers. Ranges leave out a tenth at each end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import sqrt

from tpuctl.model.capacity.capacity_history import CapacityAttempt
from tpuctl.model.capacity.hunt import Hunt
from tpuctl.model.text.record_parsing import Count, Moment, Seconds

STARTS = 200  # moments in the trace that are tried
SAVE_SECONDS = 60.0  # that a checkpoint is assumed to take
STREAK_GAP = timedelta(hours=24)  # without requests, after which a hunt has been given up


@dataclass(frozen=True)
class Range:
    low: Seconds
    high: Seconds

    @classmethod
    def of(cls, values: Iterable[float]) -> Range | None:
        """The values without a tenth at each end; None if there are none."""
        ordered = sorted(values)
        if not ordered:
            return None
        last = len(ordered) - 1
        return cls(ordered[round(0.1 * last)], ordered[round(0.9 * last)])

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Forecast:
    """What to expect of a job that needs so many hours of work. Durations are seconds."""

    created: Moment
    hours: Seconds
    starts: Count = 0  # moments of the trace that were tried
    unfinished: Count = 0  # of these, those from which the work ends after the trace
    grants: Count = 0  # in the history
    wait: Range | None = None  # for the first node, by the trace
    past_wait: Range | None = None  # by the history
    preemptions: Range | None = None
    duration: Range | None = None  # until the work is done
    checkpoint: Range | None = None  # the best interval, if saving takes SAVE_SECONDS
    cost: Range | None = None  # US dollars


def forecast(
    created: datetime,
    hours: float,
    attempts: Sequence[CapacityAttempt],
    hunt: Hunt | None = None,
    end: float = 0.0,
    *,
    is_spot: bool = True,
    per_hour: Mapping[str, float | None] = {},
) -> Forecast:
    """The forecast from the attempts to get such a node, and a hunt under a trace until `end`.

    `per_hour` has the price in each zone.
    """
    waits = [wait for _, wait in past_waits(attempts)]
    known = Forecast(created, hours, grants=len(waits), past_wait=Range.of(waits))
    if hunt is None:
        return known
    work = hours * 3600
    starts = [index * max(0.0, end - work) / STARTS for index in range(STARTS)]
    trials = [_Trial.of(hunt, start, end, work, per_hour, is_spot=is_spot) for start in starts]
    finished = [trial for trial in trials if trial.duration is not None]
    costs = [trial.cost for trial in finished if trial.cost is not None]
    intervals = [
        checkpoint_interval(SAVE_SECONDS, trial.worked / trial.preemptions)
        for trial in trials
        if trial.preemptions
    ]
    return Forecast(
        created,
        hours,
        len(trials),
        len(trials) - len(finished),
        known.grants,
        Range.of(trial.wait for trial in trials if trial.wait is not None),
        known.past_wait,
        Range.of(trial.preemptions for trial in finished),
        Range.of(trial.duration for trial in finished if trial.duration is not None),
        Range.of(intervals),
        Range.of(costs) if len(costs) == len(finished) else None,
    )


@dataclass(frozen=True)
class _Trial:
    """A job that begins at one moment of the trace."""

    wait: float | None  # None if no node is granted
    preemptions: int
    worked: float  # seconds, with what preemptions lost
    duration: float | None  # None if it does not end within the trace
    cost: float | None

    @classmethod
    def of(
        cls,
        hunt: Hunt,
        start: float,
        end: float,
        work: float,
        per_hour: Mapping[str, float | None],
        *,
        is_spot: bool,
    ) -> _Trial:
        """A preemption loses half of what lies between two checkpoints."""
        wait, duration = None, None
        preemptions, worked, left = 0, 0.0, work
        cost: float | None = 0.0
        for run in hunt.runs(start, end):
            wait = run.start - start if wait is None else wait
            seconds = min(left, run.seconds) if is_spot else left
            price = per_hour.get(run.zone.zone)
            cost = None if cost is None or price is None else cost + price * seconds / 3600
            worked += seconds
            if seconds == left:
                duration = run.start + seconds - start
                break
            preemptions += run.is_preempted
            interval = checkpoint_interval(SAVE_SECONDS, worked / max(1, preemptions))
            left -= max(0.0, seconds - interval / 2)
        return cls(wait, preemptions, worked, duration, cost)


def past_waits(attempts: Sequence[CapacityAttempt]) -> Iterator[tuple[datetime, float]]:
    """When each node was granted, and how long it was hunted for: from the first of the requests
    before it, in any zone, that follow each other within STREAK_GAP."""
    began: datetime | None = None
    before: datetime | None = None
    for attempt in sorted(attempts, key=lambda attempt: attempt.time):
        requested = attempt.time - timedelta(seconds=attempt.seconds)
        if began is None or before is None or requested - before > STREAK_GAP:
            began = requested
        before = attempt.time
        if not attempt.error:
            yield attempt.time, (attempt.time - began).total_seconds()
            began = None


def checkpoint_interval(save: float, mean_run: float) -> float:
    """How often to save if that takes `save` seconds and runs last `mean_run` on average.

    J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps",
    Future Generation Computer Systems 22 (2006), equation 37.
    """
    if save >= 2 * mean_run:
        return mean_run
    ratio = save / (2 * mean_run)
    return sqrt(2 * save * mean_run) * (1 + sqrt(ratio) / 3 + ratio / 9) - save
