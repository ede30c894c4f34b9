"""The Markdown summary of a job for CI: result, cost and curves."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tpuctl.model.jobs.report import AttemptReport, RunReport
from tpuctl.model.logs.curves import Curve
from tpuctl.model.text.terminal_text import without_control_characters
from tpuctl.units import format_duration
from tpuctl.view.jobs.curves import number, position_word
from tpuctl.view.stack.cost import run_cost

SPARKLINE = "▁▂▃▄▅▆▇█"
WIDTH = 24  # characters of a drawn curve
MAX_CURVES = 8  # curves that are shown
SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~])")


def markdown(report: RunReport, *, link: str = "", command_prefix: str = "tpuctl") -> str:
    """Markdown of GitHub and GitLab. `link` is the full report; `typed` the prefix of commands."""
    parts = [
        f"## {_title(report)}",
        *_facts(report),
        *_failure(report),
        *_curves(report.curves),
        *_attempts(report),
    ]
    more = f"[Full report]({link.replace(')', '%29')})" if link else "Full report"
    parts.append(f"{more}: `{command_prefix} report {report.record.id}`")
    return without_control_characters("\n\n".join(parts)) + "\n"


def sparkline(points: Sequence[tuple[float, float]], width: int = WIDTH) -> str:
    """A curve in one line; the mean of points that share a column."""
    columns: list[list[float]] = [[] for _ in range(min(width, len(points)))]
    for place, (_, value) in enumerate(points):
        columns[place * len(columns) // len(points)].append(value)
    means = [sum(column) / len(column) for column in columns]
    low, high = min(means, default=0.0), max(means, default=0.0)
    if high == low:
        return SPARKLINE[0] * len(means)
    return "".join(
        SPARKLINE[round((mean - low) / (high - low) * (len(SPARKLINE) - 1))] for mean in means
    )


def _title(report: RunReport) -> str:
    status = report.explanation.status
    code = f" with exit code {status.exit_code}" if status.exit_code else ""
    return f"TPU job {report.record.id}: {status.state.replace('_', ' ')}{code}"


def _facts(report: RunReport) -> Iterator[str]:
    record = report.record
    rows = [
        ("Command", _code(record.command_line)),
        ("TPU", f"{_text(report.accelerator)} in {_text(record.zone)}"),
        ("Ran", "unknown" if report.seconds is None else format_duration(report.seconds)),
        ("Cost", _text(run_cost(report))),
        ("Output", _code(record.output)),
    ]
    yield "\n".join(["| | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows)])


def _failure(report: RunReport) -> Iterator[str]:
    failure = report.explanation.failure
    if failure is None:
        return
    yield f"### {_text(failure.cause)}"
    lines = report.explanation.lines or ((failure.detail,) if failure.detail else ())
    if lines:
        yield _block(lines)
    if failure.hint:
        yield _block(failure.hint.splitlines())


def _curves(curves: Sequence[Curve]) -> Iterator[str]:
    if not curves:
        return
    rows = ["| | first | last | at | |", "| --- | ---: | ---: | ---: | --- |"]
    for curve in curves[:MAX_CURVES]:
        points = curve.all_points
        first, (position, last) = points[0][1], points[-1]
        name = _text(curve.name.replace("_", " "))
        drawn = f"`{sparkline(points)}`"
        at = position_word(curve, position)
        rows.append(f"| {name} | {number(first)} | {number(last)} | {at} | {drawn} |")
    yield "\n".join(rows)


def _attempts(report: RunReport) -> Iterator[str]:
    if len(report.attempts) < 2:
        return
    rows = ["| attempt | zone | ran | ended |", "| ---: | --- | --- | --- |"]
    rows += map(_attempt, report.attempts, report.attempt_ends)
    yield "\n".join(rows)


def _attempt(attempt: AttemptReport, end: str) -> str:
    duration = "" if attempt.hours is None else format_duration(attempt.hours * 3600)
    return (
        f"| {attempt.record.attempt} | {_text(attempt.record.zone)} | {duration} | {_text(end)} |"
    )


def _text(text: str) -> str:
    """Foreign text, with markup escaped."""
    return SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _code(text: str) -> str:
    text = " ".join(text.split()).replace("|", "\\|")
    longest = max((len(ticks) for ticks in re.findall("`+", text)), default=0)
    ticks = "`" * (longest + 1)
    space = " " if longest else ""
    return f"{ticks}{space}{text}{space}{ticks}"


def _block(lines: Sequence[str]) -> str:
    longest = max((len(ticks) for line in lines for ticks in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}text", *lines, fence])
