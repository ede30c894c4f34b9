"""A run as one self-contained HTML page, without scripts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from html import escape
from importlib import resources
from typing import TYPE_CHECKING

from tpuctl.model.jobs.installation import lock_text
from tpuctl.model.logs.log_metrics import training_loss
from tpuctl.units import dollars, format_duration
from tpuctl.view.jobs.curves import number, position_text, position_word
from tpuctl.view.stack.cost import on_google, run_price
from tpuctl.view.stack.forecast import outcome_rows

if TYPE_CHECKING:
    from tpuctl.model.jobs.report import RunReport
    from tpuctl.model.logs.curves import Curve

WIDTH, HEIGHT = 480, 220  # of a plot, in its own units
LEFT, RIGHT, TOP, BOTTOM = 66, 12, 10, 26
# Classes of the style sheet for the states of jobs.
STATE_CLASSES = {"succeeded": "good", "failed": "bad", "lost": "bad", "timed_out": "bad"}


def page(report: RunReport) -> str:
    """The whole page."""
    record = report.record
    style = resources.files(__package__).joinpath("report.css").read_text("utf-8")
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(record.id)}</title><style>\n{style}</style></head><body>",
        f"<h1>{escape(record.id)}</h1>",
        f"<p><code>{escape(record.command_line)}</code></p>",
        *render_facts(report),
        *render_failure(report),
        *render_curves(report),
        *render_attempts(report),
        *render_forecast(report),
        *_origin(report),
        *_log(report),
        f"<footer>Generated on {time_text(report.at)}. Costs are Google's published prices for the "
        "time each attempt ran; they exclude the bucket, and machines outside of attempts."
        "</footer></body></html>",
    ]
    return "\n".join(parts) + "\n"


def render_facts(report: RunReport) -> Iterator[str]:
    status = report.explanation.status
    code = "" if status.exit_code is None else f", exit code {status.exit_code}"
    curves = {curve.name: curve for curve in report.curves}
    facts = {
        "State": f'<span class="{STATE_CLASSES.get(status.state, "")}">'
        f"{status.state.replace('_', ' ')}</span>{code}",
        "Ran": "unknown" if report.seconds is None else escape(format_duration(report.seconds)),
        on_google("Cost", is_free=report.is_free): escape(run_price(report)),
        "TPU": f"{escape(report.accelerator)} in {escape(report.record.zone)}",
        "Attempts": str(len(report.attempts)),
    }
    if (name := training_loss(curves)) is not None:
        position, loss = curves[name].all_points[-1]
        facts["Loss"] = f"{escape(number(loss))} at {position_word(curves[name], position)}"
    yield '<dl class="facts">'
    yield from (f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts.items())
    yield "</dl>"


def render_failure(report: RunReport) -> Iterator[str]:
    failure = report.explanation.failure
    if failure is None:
        return
    yield "<h2>Why it ended</h2>"
    yield f'<p class="bad">{escape(failure.cause)}</p>'
    if failure.detail and failure.detail != failure.cause:
        yield f"<p>{escape(failure.detail)}</p>"
    if failure.hint:
        yield f"<pre>{escape(failure.hint)}</pre>"


def render_curves(report: RunReport) -> Iterator[str]:
    yield "<h2>Curves</h2>"
    if not report.curves:
        yield '<p class="soft">The log contains no lines like <code>step 100 loss 2.5</code>.</p>'
        return
    yield '<div class="curves">'
    for curve in report.curves:
        points = curve.all_points
        title = escape(curve.name.replace("_", " "))
        yield f"<figure><figcaption>{title}<span>{escape(number(points[-1][1]))} at the end"
        non_finite = f", {curve.non_finite} not finite" if curve.non_finite else ""
        yield f"{non_finite}</span></figcaption>"
        yield _plot(curve)
        yield "</figure>"
    yield "</div>"


def _plot(curve: Curve) -> str:
    points = curve.all_points
    first, last = points[0][0], points[-1][0]
    low, high = min(y for _, y in points), max(y for _, y in points)
    wide, tall = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - first) / (last - first) if last > first else 0.5
        up = (y - low) / (high - low) if high > low else 0.5
        return LEFT + across * wide, TOP + (1 - up) * tall

    drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))
    spoken = f"{curve.name} from {number(points[0][1])} at {position_word(curve, first)} to "
    spoken += f"{number(points[-1][1])} at {position_word(curve, last)}"
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img"><title>{escape(spoken)}</title>']
    for share in (0.0, 0.5, 1.0):
        y = TOP + (1 - share) * tall
        value = number(low + share * (high - low))
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        if high > low or share == 0.5:
            parts.append(f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{value}</text>')
    parts.append(f'<text x="{LEFT}" y="{HEIGHT - 8}">{position_word(curve, first)}</text>')
    if last > first:
        end = f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 8}" text-anchor="end">'
        parts.append(f"{end}{position_text(last)}</text>")
        parts.append(f'<polyline class="curve" points="{drawn}"/></svg>')
    else:
        x, y = place(*points[0])
        parts.append(f'<circle cx="{x}" cy="{y}" r="3" fill="var(--line)"/></svg>')
    return "".join(parts)


def render_attempts(report: RunReport) -> Iterator[str]:
    yield '<h2>Attempts</h2><div class="table"><table>'
    yield "<tr><th>attempt</th><th>zone</th><th>started</th><th>ran</th><th>ended</th>"
    cost = on_google("cost", is_free=report.is_free)
    yield f'<th class="number">{cost}</th></tr>'
    for attempt, end in zip(report.attempts, report.attempt_ends, strict=True):
        cells = (
            str(attempt.record.attempt),
            escape(attempt.record.zone),
            time_text(attempt.started),
            escape(format_duration(attempt.hours * 3600)) if attempt.hours is not None else "",
            escape(end),
        )
        cost = "" if attempt.cost is None else escape(dollars(attempt.cost))
        yield "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells)
        yield f'<td class="number">{cost}</td></tr>'
    yield "</table></div>"


def render_forecast(report: RunReport) -> Iterator[str]:
    """What `plan --forecast` said before, and what came of it."""
    if not report.outcomes:
        return
    yield f'<h2>Forecast for {report.forecast_hours:g} h of work</h2><div class="table">'
    yield "<table><tr><th></th><th>range</th><th>was</th></tr>"
    for row in outcome_rows(report.outcomes):
        yield f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>"
    yield "</table></div>"


def _origin(report: RunReport) -> Iterator[str]:
    record = report.record
    installed = record.installation
    brought = [
        lock_text(installed),
        installed.requirements,
        ", ".join(installed.dependencies),
        f"the wheels in {installed.wheels}" if installed.wheels else "",
        f"the project in {installed.project}" if installed.project else "",
        f"after {installed.setup}" if installed.setup else "",
    ]
    rows = {
        "Bundle": f"<code>{escape(record.bundle)}</code>",
        "Bundle's object": f"<code>gs://{escape(record.bucket)}/{escape(record.bundle_name)}</code>"
        if record.bundle_name
        else "",
        "Runtime": escape(report.runtime),
        "Python": escape(record.python or ""),
        "Installed": escape("; ".join(part for part in brought if part)),
        "Variables": escape(", ".join(record.env)),
        "Secrets": escape(", ".join(record.secrets)),
        "Workers": escape(", ".join(map(record.worker_name, record.workers)))
        + f" of {record.worker_count}",
        "Submitted": f"{time_text(record.submitted)} {escape(record.submitter)}",
        "Output": f"<code>{escape(record.output)}</code>",
        "Project": escape(record.project),
    }
    yield '<h2>What ran</h2><div class="table"><table>'
    yield from (
        f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in rows.items() if value
    )
    yield "</table></div>"


def _log(report: RunReport) -> Iterator[str]:
    if report.log_end:
        yield f"<h2>The end of the log</h2><pre>{escape(report.log_end)}</pre>"


def time_text(when: datetime) -> str:
    return f"{when:%Y-%m-%d %H:%M} UTC"
