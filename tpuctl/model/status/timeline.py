"""What happened to a stack and its jobs: read from their records, or seen between two snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpuctl.model.jobs.report import RunReport
    from tpuctl.model.status.inventory import InventoryItem
    from tpuctl.model.status.snapshot import JobSnapshot, Snapshot

MAX_ENTRIES = 100


@dataclass(frozen=True, order=True)
class TimelineEntry:
    at: datetime
    subject: str  # `node bert-tpu`, `job 20260101-120000-maple`
    text: str


class Timeline:
    """Collects the entries of one stack while it is watched.

    Of the time before, it knows what is recorded: creations, submissions, attempts, and ends.
    """

    def __init__(self) -> None:
        self._entries: set[TimelineEntry] = set()
        self._last: Snapshot | None = None

    def observe(self, snapshot: Snapshot) -> None:
        """Add what a snapshot records, and its differences from the one before."""
        self._entries.update(_creations(snapshot), _job_records(snapshot))
        if self._last is not None:
            self._entries.update(_resource_changes(self._last, snapshot))
            self._entries.update(_job_changes(self._last, snapshot))
        self._last = snapshot

    def observe_attempts(self, report: RunReport) -> None:
        """Add the attempts of a job, and why each was followed by another."""
        for before, attempt in pairwise(report.attempts):
            subject = f"job {report.record.id}"
            if attempt.restart is not None:
                verdict = attempt.restart.verdict
                ended = f"attempt {before.record.attempt} ended: {verdict.cause}"
                started = f"attempt {attempt.record.attempt} started in {attempt.record.zone}"
                self._entries.add(TimelineEntry(verdict.at, subject, ended))
                self._entries.add(TimelineEntry(attempt.restart.started, subject, started))

    @property
    def entries(self) -> tuple[TimelineEntry, ...]:
        """The latest entries, latest first."""
        return tuple(sorted(self._entries, reverse=True)[:MAX_ENTRIES])


def _subject(item: InventoryItem) -> str:
    return f"{item.kind_class.display_name or item.kind} {item.name}"


def _creations(snapshot: Snapshot) -> Iterator[TimelineEntry]:
    for item in snapshot.status.inventory:
        if item.created is not None:
            yield TimelineEntry(item.created, _subject(item), "created")


def _job_records(snapshot: Snapshot) -> Iterator[TimelineEntry]:
    for job in snapshot.recent_jobs:
        by = f" by {job.record.submitter}" if job.record.submitter else ""
        yield TimelineEntry(job.record.submitted, f"job {job.record.id}", f"submitted{by}")
        if job.status.finished is not None:
            yield TimelineEntry(job.status.finished, f"job {job.record.id}", _state(job))


def _resource_changes(before: Snapshot, after: Snapshot) -> Iterator[TimelineEntry]:
    earlier = {item.address: item for item in before.status.inventory}
    later = {item.address: item for item in after.status.inventory}
    for address, item in later.items():
        state = earlier[address].state if address in earlier else ""
        if item.state and state != item.state:
            text = f"{state} → {item.state}" if state else item.state
            yield TimelineEntry(after.at, _subject(item), text)
    for address, item in earlier.items():
        if address not in later:
            yield TimelineEntry(after.at, _subject(item), "deleted")


def _job_changes(before: Snapshot, after: Snapshot) -> Iterator[TimelineEntry]:
    states = {job.record.id: _state(job) for job in before.recent_jobs}
    for job in after.recent_jobs:
        state = _state(job)
        has_time = job.status.finished is not None or job.status.state in ("queued", "submitted")
        if states.get(job.record.id) != state and not has_time:
            yield TimelineEntry(after.at, f"job {job.record.id}", state)


def _state(job: JobSnapshot) -> str:
    code = f" with exit code {job.status.exit_code}" if job.status.exit_code else ""
    return f"{job.status.state.replace('_', ' ')}{code}"
