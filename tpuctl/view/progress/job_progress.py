"""The state and progress of jobs and their workers, as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from tpuctl.units import binary_size, format_duration

if TYPE_CHECKING:
    from tpuctl.model.logs.progress import Progress
    from tpuctl.model.status.snapshot import JobSnapshot, Snapshot
    from tpuctl.model.workers.chip_metrics import ChipMetrics
    from tpuctl.model.workers.worker_numbering import WorkerNumbering

MIN_QUIET_SECONDS = 60  # without log output before a running job is reported as quiet
MAX_CHIP_LINES = 4  # workers whose chips have a line each; more are summarized
MAX_CHIP_SECONDS = 300  # after which a sample of chips is out of date


def work_facts(snapshot: Snapshot) -> list[tuple[str, str]]:
    """The jobs of a stack, what a program such as its controller's is doing, and what is used of
    its limits."""
    facts = [fact for job in snapshot.jobs for fact in job_facts(job, snapshot.at)]
    if snapshot.activity is not None:
        facts.append(("activity", snapshot.activity.sentence(snapshot.at)))
    if snapshot.spending is not None:
        facts.append(("limits", f"used {snapshot.spending}"))
    if snapshot.budget is not None:
        facts.append(("budget", f"used {snapshot.budget}"))
    return facts


def job_facts(job: JobSnapshot, now: datetime) -> list[tuple[str, str]]:
    """A job in a few lines."""
    kind = "notebook" if job.record.kind == "notebook" else "job"
    facts = [(kind, f"{job.record.id}: {state_text(job)}")]
    if details := _detail_words(job, now):
        facts.append(("", ", ".join(details)))
    if len(job.record.workers) > 1 and (states := _worker_states(job)):
        facts.append(("", states))
    return facts + [("", line) for line in _chip_lines(job, now, MAX_CHIP_LINES)]


def job_sentence(job: JobSnapshot, now: datetime) -> str:
    """A job in part of a line."""
    word = job.record.id.rpartition("-")[2]
    return ", ".join([f"job {word} {state_text(job)}", *summary_words(job, now)])


def summary_words(job: JobSnapshot, now: datetime) -> list[str]:
    """Its progress, whether it is quiet or may hang, and a summary of its chips."""
    return [*_detail_words(job, now), *_chip_lines(job, now, max_lines=1)]


def _detail_words(job: JobSnapshot, now: datetime) -> list[str]:
    return [*progress_words(job.progress), *_quiet_text(job, now), *_hang_text(job)]


def progress_words(progress: Progress) -> list[str]:
    """`step 1,200` or `epoch 1.5`, `loss 2.3131`, `45,210 tokens/s`: those that are known."""
    words = []
    if progress.step is not None:
        words.append(f"step {progress.step:,}")
    elif progress.epoch is not None:
        words.append(f"epoch {progress.epoch:.4g}")
    if progress.loss is not None:
        words.append(f"loss {progress.loss:.5g}")
    if progress.tokens_per_second is not None:
        words.append(f"{progress.tokens_per_second:,.0f} tokens/s")
    return words


def state_text(job: JobSnapshot) -> str:
    """`running`, `failed with exit code 3, attempt 2`."""
    attempt = f", attempt {job.record.attempt}" if job.record.attempt > 1 else ""
    code = job.status.exit_code
    ended = f" with exit code {code}" if code else ""
    return f"{job.status.state}{ended}{attempt}"


def _quiet_text(job: JobSnapshot, now: datetime) -> Iterator[str]:
    is_notebook = job.record.kind == "notebook"
    if job.status.state == "running" and job.logged is not None and not is_notebook:
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
    names = job.record.numbering
    parts = (f"{_ranges(numbers, names)} {state}" for state, numbers in by_state.items())
    return f"workers {', '.join(parts)}"


def _chip_lines(job: JobSnapshot, now: datetime, max_lines: int) -> list[str]:
    """The duty cycle and memory of each running worker's chips, or of all together if there are
    more than `max_lines`; then why there are none of other workers."""
    chips: dict[int, ChipMetrics] = {}
    absences: dict[str, list[int]] = {}
    running = [worker for worker in job.workers.values() if worker.state == "running"]
    for worker in sorted(running, key=lambda worker: worker.worker):
        if worker.chips is None:
            continue
        absence = worker.chips.absence
        if not absence and (now - worker.chips.at).total_seconds() > MAX_CHIP_SECONDS:
            absence = f"no new values for {format_duration(MAX_CHIP_SECONDS)}"
        if absence:
            absences.setdefault(absence, []).append(worker.worker)
        else:
            chips[worker.worker] = worker.chips
    numbering = job.record.numbering
    is_alone = len(job.record.workers) == 1
    if len(chips) > max_lines:
        lines = [_chip_summary(chips, numbering)]
    else:
        names = {w: "" if is_alone else f"worker {numbering.name(w)}: " for w in chips}
        lines = [names[worker] + _chip_text(sample) for worker, sample in chips.items()]
    for absence, workers in absences.items():
        plural = "s" * (len(workers) > 1)
        numbers = _ranges(workers, numbering)
        of_workers = "" if len(workers) == len(running) else f" for worker{plural} {numbers}"
        lines.append(f"no chip metrics{of_workers}: {absence}")
    return lines


def _chip_text(chips: ChipMetrics) -> str:
    """`duty cycle 97%, HBM 18.4 of 31.2 GiB`, of the fullest chip."""
    return f"duty cycle {chips.duty_cycle:.0f}%, HBM {_memory(chips)}"


def _chip_summary(chips: Mapping[int, ChipMetrics], numbering: WorkerNumbering) -> str:
    """`duty cycle 93% (lowest: 12%, worker 17), HBM at most 18.4 of 31.2 GiB (worker 3)`."""
    mean = sum(sample.duty_cycle for sample in chips.values()) / len(chips)
    idlest = min(chips, key=lambda worker: chips[worker].duty_cycle)
    fullest = max(chips, key=lambda worker: chips[worker].fullness)
    lowest = f"{chips[idlest].duty_cycle:.0f}%, worker {numbering.name(idlest)}"
    memory = f"{_memory(chips[fullest])} (worker {numbering.name(fullest)})"
    return f"duty cycle {mean:.0f}% (lowest: {lowest}), HBM at most {memory}"


def _memory(chips: ChipMetrics) -> str:
    used, total = chips.fullest
    return f"{used / 2**30:.1f} of {binary_size(total)}"


def _ranges(numbers: Iterable[int], numbering: WorkerNumbering) -> str:
    """`0-3 5`, from sorted numbers; `0.0-1.1 2.1` with several slices."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    name = numbering.name
    return " ".join(
        name(first) if first == last else f"{name(first)}-{name(last)}" for first, last in runs
    )
