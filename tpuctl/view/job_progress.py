"""The state and progress of jobs and their workers, as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from tpuctl.units import format_duration

if TYPE_CHECKING:
    from tpuctl.model.progress import Progress
    from tpuctl.model.snapshot import JobSnapshot

__all__ = ["job_facts", "job_sentence", "progress_words"]

MIN_QUIET_SECONDS = 60  # without log output before a running job is reported as quiet


def job_facts(job: JobSnapshot, now: datetime) -> list[tuple[str, str]]:
    """A job in two or three lines."""
    facts = [("job", f"{job.record.id}: {_state_text(job)}")]
    if details := [*progress_words(job.progress), *_quiet_text(job, now), *_hang_text(job)]:
        facts.append(("", ", ".join(details)))
    if len(job.record.workers) > 1 and (states := _worker_states(job)):
        facts.append(("", states))
    return facts


def job_sentence(job: JobSnapshot, now: datetime) -> str:
    """A job in part of a line."""
    word = job.record.id.rpartition("-")[2]
    return ", ".join(
        [
            f"job {word} {_state_text(job)}",
            *progress_words(job.progress),
            *_quiet_text(job, now),
            *_hang_text(job),
        ]
    )


def progress_words(progress: Progress) -> list[str]:
    """`step 1,200`, `loss 2.3131`, `45,210 tokens/s`: those that are known."""
    words = []
    if progress.step is not None:
        words.append(f"step {progress.step:,}")
    if progress.loss is not None:
        words.append(f"loss {progress.loss:.5g}")
    if progress.tokens_per_second is not None:
        words.append(f"{progress.tokens_per_second:,.0f} tokens/s")
    return words


def _state_text(job: JobSnapshot) -> str:
    attempt = f", attempt {job.record.attempt}" if job.record.attempt > 1 else ""
    code = job.status.exit_code
    ended = f" with exit code {code}" if code else ""
    return f"{job.status.state}{ended}{attempt}"


def _quiet_text(job: JobSnapshot, now: datetime) -> Iterator[str]:
    if job.status.state == "running" and job.logged is not None:
        seconds = (now - job.logged).total_seconds()
        if seconds >= MIN_QUIET_SECONDS:
            yield f"no log output for {format_duration(seconds)}"


def _hang_text(job: JobSnapshot) -> Iterator[str]:
    has_hang = any(worker.hang is not None for worker in job.workers.values())
    if has_hang and job.status.state == "running":
        yield "may hang (see tpuctl explain)"


def _worker_states(job: JobSnapshot) -> str:
    """`workers 0-2 running, 3 preparing`."""
    by_state: dict[str, list[int]] = {}
    for number in job.record.workers:
        worker = job.workers.get(number)
        by_state.setdefault(worker.state if worker is not None else "unknown", []).append(number)
    parts = (f"{_ranges(numbers)} {state}" for state, numbers in by_state.items())
    return f"workers {', '.join(parts)}"


def _ranges(numbers: Iterable[int]) -> str:
    """`0-3 5`, from sorted numbers."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return " ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs)
