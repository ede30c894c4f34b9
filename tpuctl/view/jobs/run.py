"""One run in the terminal: facts, attempts and curves."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

from tpuctl.units import format_duration
from tpuctl.view.jobs.curves import draw, number
from tpuctl.view.stack.cost import run_cost
from tpuctl.view.stack.forecast import outcome_rows
from tpuctl.view.terminal.tables import print_facts, print_table
from tpuctl.view.terminal.text_wrapping import print_wrapped

if TYPE_CHECKING:
    from tpuctl.model.jobs.report import RunReport

MAX_DRAWN = 3  # curves; the others have their last value in a line


def print_run(report: RunReport) -> None:
    record, status = report.record, report.explanation.status
    code = "" if status.exit_code is None else f", exit code {status.exit_code}"
    facts = [
        ("job", record.id),
        ("command", record.command_line),
        ("state", f"{status.state.replace('_', ' ')}{code}"),
        ("submitted", f"{record.submitted:%Y-%m-%d %H:%M} UTC by {record.submitter}"),
        ("ran", "-" if report.seconds is None else format_duration(report.seconds)),
        ("cost", run_cost(report)),
        ("output", record.output),
    ]
    if record.python is not None:
        facts.insert(-1, ("python", record.python))
    if report.explanation.failure is not None:
        facts.insert(3, ("cause", report.explanation.failure.cause))
    print_facts(facts)
    if report.outcomes:
        print()
        heading = f"forecast for {report.forecast_hours:g} h"
        print_table((heading, "range", "was"), outcome_rows(report.outcomes))
    if len(report.attempts) > 1:
        print()
        print_table(
            ("attempt", "zone", "started (UTC)", "ran", "ended"),
            [
                (
                    str(attempt.record.attempt),
                    attempt.record.zone,
                    f"{attempt.started:%m-%d %H:%M}",
                    "" if attempt.hours is None else format_duration(attempt.hours * 3600),
                    end,
                )
                for attempt, end in zip(report.attempts, report.attempt_ends, strict=True)
            ],
            whole=("zone", "started (UTC)", "ran"),
        )
    _curves(report)


def _curves(report: RunReport) -> None:
    width = min(100, shutil.get_terminal_size((80, 24)).columns)
    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower()
    plain = "utf" not in encoding
    for curve in report.curves[:MAX_DRAWN]:
        last = number(curve.all_points[-1][1])
        print(f"\n{curve.name.replace('_', ' ')}: {last} at the end")
        height = 8 if curve is report.curves[0] else 4
        print("\n".join(draw(curve.all_points, width=width, height=height, plain=plain)))
    others = [
        f"{curve.name.replace('_', ' ')} {number(curve.all_points[-1][1])}"
        for curve in report.curves[MAX_DRAWN:]
    ]
    if others:
        print_wrapped(f"\nat the end: {', '.join(others)}")
    if not report.curves:
        print_wrapped("\nNo curves: the log has no lines like `step 100 loss 2.5`.")
