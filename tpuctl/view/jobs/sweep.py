"""Sweeps on stdout: what they may cost, and a table of what became of the jobs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tpuctl.units import counted, dollars, format_duration
from tpuctl.view.jobs.curves import number
from tpuctl.view.stack.cost import FREE, on_google
from tpuctl.view.terminal.tables import console, fits, table

if TYPE_CHECKING:
    from rich.table import Table

    from tpuctl.model.jobs.report import RunReport
    from tpuctl.model.jobs.sweep import SweepEstimate, SweepValues


def sweep_sentence(estimate: SweepEstimate, *, is_free: bool) -> str:
    """`6 jobs run one after another: about 2 h, $17.76, as the last successful one took 20 min.`"""
    jobs, tpus = counted(estimate.count, "job"), estimate.tpus
    if tpus > 1:
        jobs += f" run on up to {tpus} TPUs at once"
    elif estimate.count > 1:
        jobs += " run one after another"

    def total(seconds_each: float) -> str:
        seconds = seconds_each * math.ceil(estimate.count / tpus)
        if estimate.per_hour is None:
            return format_duration(seconds)
        amount = on_google(dollars(estimate.per_hour * seconds / 3600), is_free=is_free)
        return f"{format_duration(seconds)}, {amount}"

    one_job, bound = estimate.seconds_each, estimate.timeout
    if one_job is not None:
        length = format_duration(one_job)
        text = f"{jobs}: about {total(one_job)}, as the last successful one took {length}."
    elif bound is not None:
        text = f"{jobs}: at most {total(bound)}."
    elif estimate.per_hour is None:
        text = f"{jobs}. The price of this stack is unknown."
    else:
        amount = on_google(f"{dollars(estimate.per_hour)}/h", is_free=is_free)
        text = f"{jobs}. This stack costs {amount}{f' with {tpus} TPUs' if tpus > 1 else ''}."
    return f"{text} {FREE}" if is_free else text


def print_sweep(sweep: Sequence[SweepValues], reports: Sequence[RunReport]) -> None:
    """A row for each job, the first ones with their reports, and the last values of as many
    metrics as fit; where the ids of the jobs do not fit, their last words."""
    metrics = list(dict.fromkeys(curve.name for report in reports for curve in report.curves))
    choices = itertools.product(range(len(metrics), -1, -1), (False, True))
    tables = (_table(sweep, reports, metrics[:count], is_short) for count, is_short in choices)
    widest_fitting = next(tables)
    while not fits(widest_fitting) and (narrower := next(tables, None)) is not None:
        widest_fitting = narrower
    console().print(widest_fitting)


def _table(
    sweep: Sequence[SweepValues],
    reports: Sequence[RunReport],
    metrics: Sequence[str],
    is_short: bool,
) -> Table:
    options = [f"--{name}" for name in sweep[0]]
    numbers = ["exit", "ran", "steps", *(name.replace("_", " ") for name in metrics)]
    numbers.append(on_google("cost", is_free=reports[0].is_free))
    rows = [
        (*values.values(), *_cells(report, metrics, is_short))
        for values, report in itertools.zip_longest(sweep, reports)
    ]
    return table((*options, "job", "state", *numbers), rows, numbers=(*options, *numbers))


def _cells(report: RunReport | None, metrics: Sequence[str], is_short: bool) -> list[str]:
    """The cells of a job after its values; without a report, it was not started."""
    if report is None:
        return ["-", "not started", *["-"] * (len(metrics) + 4)]
    status, job = report.explanation.status, report.record.id
    curves = [report.curve(name) for name in metrics]
    return [
        job.rpartition("-")[2] if is_short else job,
        status.state.replace("_", " "),
        "-" if status.exit_code is None else str(status.exit_code),
        "-" if report.seconds is None else format_duration(report.seconds),
        "-" if report.last_step is None else f"{report.last_step:,}",
        *("-" if curve is None else number(curve.all_points[-1][1]) for curve in curves),
        "-" if report.cost is None else dollars(report.cost),
    ]
