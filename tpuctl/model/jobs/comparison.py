"""What differs between jobs: their programs, their machines, and what became of them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tpuctl.model.jobs.installation import lock_text
from tpuctl.model.jobs.job import JobRecord
from tpuctl.model.jobs.report import RunReport
from tpuctl.model.logs.curves import Curve

Value = str | int | float | tuple[str, ...] | None  # None: unknown, or the job has none
Unit = Literal["", "seconds", "dollars"]

# Words in a metric's name that tell whether low or high values are good.
LOW = "loss error err perplexity ppl mae mse rmse wer cer fid nll"
HIGH = "accuracy acc auc f1 precision recall bleu rouge reward mfu second"


@dataclass(frozen=True)
class ComparedJob:
    """A job, and the SHA-256 of each file that it was started with, if still known."""

    report: RunReport
    files: Mapping[str, str] | None

    @property
    def record(self) -> JobRecord:
        return self.report.record


@dataclass(frozen=True)
class ComparisonRow:
    """A property, with its value for each job."""

    name: str
    values: tuple[Value, ...]
    unit: Unit = ""

    @property
    def differs(self) -> bool:
        return len(set(self.values)) > 1


@dataclass(frozen=True)
class Comparison:
    """Jobs, in the order of the columns, and their properties."""

    jobs: tuple[str, ...]  # their ids
    rows: tuple[ComparisonRow, ...]
    has_metrics: bool


def compare_jobs(jobs: Sequence[ComparedJob]) -> Comparison:
    """All properties of the jobs that are worth comparing. Files are compared with the first's."""
    reports = [job.report for job in jobs]

    def row(name: str, value: Callable[[ComparedJob], Value], unit: Unit = "") -> ComparisonRow:
        return ComparisonRow(name, tuple(map(value, jobs)), unit)

    rows = [
        row("program", lambda job: _program(job.record)),
        *argument_rows([job.record.args for job in jobs]),
        row("bundle", lambda job: job.record.bundle[:12]),
        row("files changed", lambda job: _changes(jobs[0].files, job.files)),
        row("environment", lambda job: job.record.env),
        row("secrets", lambda job: tuple(sorted(job.record.secrets))),
        row("python", lambda job: job.record.python),
        row("lock", lambda job: lock_text(job.record.installation)),
        row("requirements", lambda job: job.record.installation.requirements),
        row("dependencies", lambda job: job.record.installation.dependencies),
        row("wheels", lambda job: job.record.installation.wheels),
        row("setup command", lambda job: job.record.installation.setup),
        row("framework", lambda job: job.record.framework),
        row("runtime", lambda job: job.record.runtime or None),
        row("TPU type", lambda job: job.record.accelerator or None),
        row("zone", lambda job: job.record.zone),
        row("workers", lambda job: len(job.record.workers)),
        row("timeout", lambda job: job.record.timeout, "seconds"),
        row("submitted (UTC)", lambda job: f"{job.record.submitted:%Y-%m-%d %H:%M}"),
        row("submitted by", lambda job: job.record.submitted_by),
        row("state", lambda job: job.report.explanation.status.state.replace("_", " ")),
        row("exit code", lambda job: job.report.explanation.status.exit_code),
        row("attempts", lambda job: len(job.report.attempts)),
        row("ran", lambda job: job.report.seconds, "seconds"),
        row("cost", lambda job: job.report.cost, "dollars"),
        row("steps", lambda job: job.report.last_step),
        row("steps per second", lambda job: job.report.steps_per_second),
    ]
    metrics = dict.fromkeys(curve.name for report in reports for curve in report.curves)
    for name in metrics:
        rows += metric_rows(name, [report.curve(name) for report in reports])
    return Comparison(
        tuple(job.record.id for job in jobs),
        tuple(row for row in rows if set(row.values) - {None, ()}),
        has_metrics=bool(metrics),
    )


def _program(record: JobRecord) -> str:
    return f"-m {record.script}" if record.kind == "module" else record.script


def argument_rows(arguments: Sequence[Sequence[str]]) -> Iterator[ComparisonRow]:
    """A row for each option, and one for all other arguments."""
    parsed = [_parse_arguments(argument) for argument in arguments]
    others = [shlex.join(positional) or None for _, positional in parsed]
    yield ComparisonRow("arguments", tuple(others))
    for name in dict.fromkeys(name for options, _ in parsed for name in options):
        yield ComparisonRow(name, tuple(options.get(name) for options, _ in parsed))


def _parse_arguments(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Options with their values, and the remaining arguments. What follows an option is taken as
    its value; only the script knows better."""
    options: dict[str, str] = {}
    others: list[str] = []
    name = ""
    for argument in arguments:
        if re.match(r"--?[A-Za-z]", argument):
            name, equals, value = argument.partition("=")
            options[name] = value if equals else "yes"
            name = "" if equals else name
        elif name:
            options[name], name = argument, ""
        else:
            others.append(argument)
    return options, others


def _changes(before: Mapping[str, str] | None, files: Mapping[str, str] | None) -> Value:
    """The files that differ; None if they are unknown."""
    if before is None or files is None:
        return None
    names = sorted(
        name for name in before.keys() | files.keys() if before.get(name) != files.get(name)
    )
    suffixes = {
        name: " (added)" if name not in before else " (removed)" if name not in files else ""
        for name in names
    }
    return tuple(name + suffix for name, suffix in suffixes.items())


def metric_rows(name: str, curves: Sequence[Curve | None]) -> Iterator[ComparisonRow]:
    """The values at the last step that all jobs with this metric have logged, the best until then,
    and the last ones if the jobs did not end with the same step."""
    points = [{} if curve is None else dict(curve.all_points) for curve in curves]
    title = name.replace("_", " ")
    steps = [point.keys() for point in points if point]
    units = {curve.unit for curve in curves if curve is not None}
    common = max(set(steps[0]).intersection(*steps[1:]), default=None) if len(units) == 1 else None
    if common is not None:
        step = f"{units.pop()} {common:,}"
        yield ComparisonRow(f"{title} at {step}", tuple(point.get(common) for point in points))
        best = _best(name)
        if best is not None:
            word = "lowest" if best is min else "highest"
            until = [[value for at, value in point.items() if at <= common] for point in points]
            values = tuple(best(before) if before else None for before in until)
            yield ComparisonRow(f"{word} {title} until {step}", values)
    last = [max(point, default=None) for point in points]
    if len(set(last) - {None}) > 1:
        values = tuple(
            None if at is None else curve[at] for at, curve in zip(last, points, strict=True)
        )
        yield ComparisonRow(f"{title} at the end", values)


def _best(name: str) -> Callable[[Iterable[float]], float] | None:
    """Which values of a metric are better; None if its name does not tell."""
    words = set(re.split(r"[^a-z0-9]+", name.lower()))
    if not words.isdisjoint(LOW.split()):
        return min
    return None if words.isdisjoint(HIGH.split()) else max
