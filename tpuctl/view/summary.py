"""A run in Markdown, as pipelines show it: how it ended, what it cost, how its numbers went."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tpuctl.model.curves import Curve
from tpuctl.model.duration import format_duration as shown_duration
from tpuctl.model.report import AttemptReport, RunReport
from tpuctl.view.cost import run_cost
from tpuctl.view.curves import number

__all__ = ["markdown", "sparkline"]

STEPS = "▁▂▃▄▅▆▇█"
WIDTH = 24  # characters of a drawn curve
MOST = 8  # curves that are shown
SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~])")


def markdown(report: RunReport, *, link: str = "", typed: str = "tpuctl") -> str:
    """As GitHub and GitLab read it. `link` leads to the whole report; `typed` is how the user
    starts another command."""
    parts = [
        f"## {_title(report)}",
        *_facts(report),
        *_failure(report),
        *_curves(report.curves),
        *_attempts(report),
    ]
    more = f"[The whole report]({link.replace(')', '%29')})" if link else "The whole report"
    parts.append(f"{more}, at any time: `{typed} report {report.record.id}`")
    return "\n\n".join(parts) + "\n"


def sparkline(points: Sequence[tuple[int, float]], width: int = WIDTH) -> str:
    """A curve in one line; the mean where several points share a column."""
    columns: list[list[float]] = [[] for _ in range(min(width, len(points)))]
    for place, (_, value) in enumerate(points):
        columns[place * len(columns) // len(points)].append(value)
    means = [sum(one) / len(one) for one in columns]
    low, high = min(means, default=0.0), max(means, default=0.0)
    if high == low:
        return STEPS[0] * len(means)
    return "".join(STEPS[round((one - low) / (high - low) * (len(STEPS) - 1))] for one in means)


def _title(report: RunReport) -> str:
    status = report.explanation.status
    code = f" with exit code {status.exit_code}" if status.exit_code else ""
    return f"TPU job {report.record.id}: {status.state.replace('_', ' ')}{code}"


def _facts(report: RunReport) -> Iterator[str]:
    record = report.record
    hours = [one.hours for one in report.attempts if one.hours is not None]
    rows = [
        ("Command", _code(f"tpuctl run {record.command}")),
        ("TPU", f"{_text(report.accelerator)} in {_text(record.zone)}"),
        ("Ran", shown_duration(sum(hours) * 3600) if hours else "not yet ended"),
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
    rows = ["| | first | last | step | |", "| --- | ---: | ---: | ---: | --- |"]
    for one in curves[:MOST]:
        points = one.all_points
        first, (step, last) = points[0][1], points[-1]
        name = _text(one.name.replace("_", " "))
        drawn = f"`{sparkline(points)}`"
        rows.append(f"| {name} | {number(first)} | {number(last)} | {step:,} | {drawn} |")
    yield "\n".join(rows)


def _attempts(report: RunReport) -> Iterator[str]:
    if len(report.attempts) < 2:
        return
    rows = ["| attempt | zone | ran | because |", "| ---: | --- | --- | --- |"]
    rows += [_attempt(one) for one in report.attempts]
    yield "\n".join(rows)


def _attempt(one: AttemptReport) -> str:
    ran = "" if one.hours is None else shown_duration(one.hours * 3600)
    why = "" if one.why is None else _text(one.why.verdict.cause)
    return f"| {one.record.attempt} | {_text(one.record.zone)} | {ran} | {why} |"


def _text(text: str) -> str:
    """Words of others, in which nothing is markup."""
    return SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _code(text: str) -> str:
    text = " ".join(text.split()).replace("|", "\\|")
    longest = max((len(one) for one in re.findall("`+", text)), default=0)
    ticks = "`" * (longest + 1)
    space = " " if longest else ""
    return f"{ticks}{space}{text}{space}{ticks}"


def _block(lines: Sequence[str]) -> str:
    longest = max((len(one) for line in lines for one in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}text", *lines, fence])
