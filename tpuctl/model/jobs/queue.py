"""Jobs in a stack's queue: what each waits with, how it was started, and how it ended.

The queue has no list that a client could overwrite: it is the jobs in the bucket that were queued
and have not ended, and each step of one is an object that is written once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from tpuctl.model.jobs.attempt import Placement
from tpuctl.model.text.names import JOBS
from tpuctl.model.text.record_parsing import Count, ExitCode, Index, Moment, Name, Text

MIN_PRIORITY, MAX_PRIORITY = -100, 100
MAX_PARALLEL = 99


class Queued(BaseModel):
    """What the record of a queued job says about its place in the queue."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    priority: int = Field(
        0,
        ge=MIN_PRIORITY,
        le=MAX_PRIORITY,
        description="Jobs of a higher priority start first, those of the same in their order.",
    )
    down: bool = Field(
        False, description="Whether the stack is taken down when the queue is empty after it."
    )
    stack_file: Name = Field(
        "", description="The object with the stack file that the controller runs it by."
    )
    parallel: int = Field(
        1, ge=1, le=MAX_PARALLEL, description="The TPUs that may run it and its like, at most."
    )


class JobStart(BaseModel):
    """`start.json` of a queued job: written once, by the program that starts its first attempt.

    If several programs try, the one that wrote it starts the job; the others follow it.
    """

    model_config = ConfigDict(frozen=True, defer_build=True)

    version: int = 1
    placement: Placement
    worker_count: Count = Field(ge=1)
    workers: tuple[Index, ...] = Field(min_length=1, max_length=100_000)
    slices: Count = Field(1, ge=1)
    accelerator: Name = ""
    runtime: Name = ""
    started: Moment
    started_by: Name = ""
    write_id: Name = Field("", description="Random, unique per writer.")


class JobEnd(BaseModel):
    """`ended.json` of a queued job: written once, when no further attempt will start."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    version: int = 1
    exit_code: ExitCode
    detail: Text = ""
    ended: Moment
    ended_by: Name = ""


class Turns(BaseModel):
    """Whose turn it is: the job of each TPU that works on the queue, by the TPU's number.

    An empty job is that of a TPU which is being created. Further TPUs than the first are listed
    until they are deleted.
    """

    model_config = ConfigDict(frozen=True, defer_build=True)

    version: int = 1
    jobs: dict[int, Name] = Field(default_factory=dict)

    @property
    def further(self) -> list[int]:
        """The numbers of TPUs beside the stack's own."""
        return sorted(number for number in self.jobs if 1 < number <= MAX_PARALLEL)

    def with_job(self, number: int, job: str) -> Turns:
        return self.model_copy(update={"jobs": {**self.jobs, number: job}})

    def with_tpus(self, numbers: Iterable[int]) -> Turns:
        """With these TPUs, without a job unless they have one."""
        return self.model_copy(update={"jobs": {**dict.fromkeys(numbers, ""), **self.jobs}})

    def without(self, number: int) -> Turns:
        jobs = {each: job for each, job in self.jobs.items() if each != number}
        return self.model_copy(update={"jobs": jobs})


@dataclass(frozen=True)
class QueuePlace:
    """What decides the order of a job in the queue. `submitted` counts the bucket's jobs in the
    order of their submission, by its clock."""

    job: str
    submitted: int
    priority: int = 0
    is_started: bool = False


def in_order(places: Iterable[QueuePlace]) -> list[QueuePlace]:
    """The order in which jobs run: one that is started, then by priority, then as submitted."""
    return sorted(
        places, key=lambda place: (not place.is_started, -place.priority, place.submitted)
    )


def open_jobs(names: Iterable[str]) -> Mapping[str, bool]:
    """Of these objects below JOBS: the jobs without an end, and whether each has a start, in the
    order of `names`."""
    records: dict[str, set[str]] = {}
    for name in names:
        job, _, file = name.removeprefix(f"{JOBS}/").partition("/")
        records.setdefault(job, set()).add(file)
    return {
        job: "start.json" in files
        for job, files in records.items()
        if "job.json" in files and "ended.json" not in files
    }
