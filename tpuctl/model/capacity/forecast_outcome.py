"""How true a forecast was for a job."""

from __future__ import annotations

from collections.abc import Sequence

from tpuctl.model.capacity.capacity_history import CapacityAttempt
from tpuctl.model.capacity.forecast import Forecast, Range, past_waits
from tpuctl.model.jobs.report import ForecastOutcome, OutcomeName, RunReport


def outcome_of(
    forecast: Forecast, report: RunReport, attempts: Sequence[CapacityAttempt]
) -> tuple[ForecastOutcome, ...]:
    """What a job made of its forecast, by the attempts to get its nodes. Empty if the job was
    submitted before the forecast was made; without what is unknown, or not known yet."""
    if report.record.submitted < forecast.created:
        return ()
    waits = (wait for time, wait in past_waits(attempts) if time >= forecast.created)
    wait = next(waits, None)
    preemptions = duration = cost = None
    if not report.is_running and report.seconds is not None:
        restarts = [attempt.restart for attempt in report.attempts if attempt.restart is not None]
        preemptions = float(sum(restart.verdict.kind == "preemption" for restart in restarts))
        first, last = report.attempts[0], report.attempts[-1]
        end = last.ended or last.last_seen
        if end is not None:
            duration = (wait or 0.0) + (end - first.started).total_seconds()
        cost = report.cost
    pairs: Sequence[tuple[OutcomeName, Range | None, float | None]] = (
        ("wait", forecast.wait or forecast.past_wait, wait),
        ("preemptions", forecast.preemptions, preemptions),
        ("duration", forecast.duration, duration),
        ("cost", forecast.cost, cost),
    )
    return tuple(
        ForecastOutcome(name, expected.low, expected.high, actual)
        for name, expected, actual in pairs
        if expected is not None and actual is not None
    )
