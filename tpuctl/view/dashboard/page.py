"""The dashboard's page: what its sections contain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape
from typing import TYPE_CHECKING, Any

from tpuctl.view.jobs.report import (
    STATE_CLASSES,
    render_attempts,
    render_curves,
    render_facts,
    render_failure,
    time_text,
)
from tpuctl.view.progress.job_progress import state_text, summary_words
from tpuctl.view.stack.cost import on_google
from tpuctl.view.stack.status import ChargeRow, charge_rows, price_notes, total_costs

if TYPE_CHECKING:
    from tpuctl.model.jobs.report import RunReport
    from tpuctl.model.status.dashboard import DashboardState
    from tpuctl.model.status.snapshot import JobSnapshot, Snapshot


def document(
    state: DashboardState, typed: Callable[[str], str], *, is_free: bool
) -> dict[str, Any]:
    """The page's contents for its script: HTML by section, and the end of the log as text.

    `typed` returns the command to type for one of the advice.
    """
    snapshot, report, problem = state.snapshot, state.report, state.problem
    stack = snapshot.status.stack
    sections = {
        "costs": _costs(snapshot, is_free=is_free),
        "resources": _resources(snapshot, typed, is_free=is_free),
        "jobs": _jobs(snapshot, report),
        "job": _job(report),
        "timeline": _timeline(state),
    }
    return {
        "stack": stack.name,
        "project": stack.project,
        "updated": f"{snapshot.at:%Y-%m-%d %H:%M:%S} UTC",
        "problem": ""
        if problem is None
        else f"{problem.summary}: {problem.detail}. Retrying; the last known state is shown.",
        "sections": {name: "\n".join(parts) for name, parts in sections.items()},
        "log": _log(state),
    }


def _costs(snapshot: Snapshot, *, is_free: bool) -> Iterator[str]:
    charges = snapshot.status.charges
    per_hour, spent = total_costs(charges)
    nodes = [f"{node.accelerator_type} {node.state}" for node in snapshot.status.nodes]
    facts = {
        "TPU": ", ".join(nodes) or "none",
        on_google("Cost per hour", is_free=is_free): per_hour,
    }
    if snapshot.activity is not None:
        facts["Activity"] = snapshot.activity.sentence(snapshot.at)
    if any(charge.item.kind != "bucket" for charge in charges):
        facts[on_google("Cost so far", is_free=is_free)] = spent
    yield '<dl class="facts">'
    yield from (
        f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items()
    )
    yield "</dl>"


def _resources(snapshot: Snapshot, typed: Callable[[str], str], *, is_free: bool) -> Iterator[str]:
    """The stack as a tree: its resources, and the workers of each node."""
    status = snapshot.status
    yield "<h2>Resources</h2>"
    if status.inventory:
        yield f'<p>{escape(status.stack.name)}</p><ul class="tree">'
        first_worker = 0
        for row in charge_rows(status.inventory, status.charges, status.at):
            yield f"<li>{_resource(row)}"
            if row.item.node is not None:
                addresses = row.item.node.addresses or row.item.node.endpoints
                yield from _workers(snapshot, first_worker, addresses)
                first_worker += len(addresses)
            yield "</li>"
        for charge in status.charges:
            if charge.item.kind == "bucket":
                yield f"<li>bucket {escape(charge.item.name)}"
                yield f'<span class="soft">{escape(charge.note)}</span></li>'
        yield "</ul>"
    for advice in status.advice:
        yield f"<p>{escape(advice.text)}</p><pre>{escape(typed(advice.command))}</pre>"
    for note in price_notes(status.charges, is_free=is_free):
        yield f'<p class="soft">{escape(note)}</p>'


def _resource(row: ChargeRow) -> str:
    age, per_hour, spent = row.numbers
    details = [
        row.item.detail,
        row.item.zone,
        age,
        f"{per_hour}/h" if per_hour else "",
        f"{spent} so far" if spent else "",
    ]
    return (
        f"{escape(row.title)} <strong>{escape(row.state)}</strong>"
        f'<span class="soft">{escape(", ".join(filter(None, details)))}</span>'
    )


def _workers(snapshot: Snapshot, first: int, addresses: tuple[str, ...]) -> Iterator[str]:
    """The workers of a node, with their state in the running job."""
    running = [job for job in snapshot.jobs if job.status.exit_code is None]
    yield "<ul>"
    for number, address in enumerate(addresses, first):
        records = [job.workers[number] for job in running if number in job.workers]
        state = f" <strong>{escape(records[-1].state)}</strong>" if records else ""
        name = snapshot.status.stack.numbering.name(number)
        yield f'<li>worker {name}{state}<span class="soft">{escape(address)}</span></li>'
    yield "</ul>"


def _jobs(snapshot: Snapshot, report: RunReport | None) -> Iterator[str]:
    yield "<h2>Jobs</h2>"
    if not snapshot.recent_jobs:
        yield '<p class="soft">No job was submitted yet.</p>'
        return
    yield '<ul class="jobs">'
    for job in reversed(snapshot.recent_jobs):
        is_shown = report is not None and report.record.id == job.record.id
        yield f"<li>{_job_line(snapshot, job, is_shown=is_shown)}</li>"
    yield "</ul>"


def _job_line(snapshot: Snapshot, job: JobSnapshot, *, is_shown: bool) -> str:
    current = ' aria-current="true"' if is_shown else ""
    details = ", ".join([job.record.script, *summary_words(job, snapshot.at)])
    return (
        f'<a href="#job={escape(job.record.id)}"{current}>{escape(job.record.id)}</a> '
        f'<span class="{STATE_CLASSES.get(job.status.state, "")}">{escape(state_text(job))}</span>'
        f'<span class="soft">{escape(details)}</span>'
    )


def _job(report: RunReport | None) -> Iterator[str]:
    """The job that is shown, as in its report."""
    if report is not None:
        yield f"<h2>Job {escape(report.record.id)}</h2>"
        yield f"<p><code>{escape(report.record.command_line)}</code></p>"
        yield from render_facts(report)
        yield from render_failure(report)
        yield from render_curves(report)
        if len(report.attempts) > 1:
            yield from render_attempts(report)


def _log(state: DashboardState) -> dict[str, Any] | None:
    """The last lines; `count` is the number of lines so far, to tell the new ones."""
    if state.report is None or state.log_tail is None:
        return None
    record = state.report.record
    first = record.worker_name(record.workers[0])
    return {
        "name": f"{record.id}, attempt {record.attempt}, worker {first}",
        "count": state.log_tail.line_count,
        "lines": state.log_tail.lines,
        "rest": state.log_tail.incomplete_line,
    }


def _timeline(state: DashboardState) -> Iterator[str]:
    yield '<h2>Events</h2><ol class="timeline">'
    for entry in state.timeline:
        when = f'<time datetime="{entry.at.isoformat()}">{time_text(entry.at)}</time>'
        yield f"<li>{when} {escape(entry.subject)}: {escape(entry.text)}</li>"
    yield "</ol>"
