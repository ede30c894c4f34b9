"""What a run is asked to do besides its job, and what has become of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tpuctl.model.logs.log_range import WHOLE_LOG, LogRange

if TYPE_CHECKING:
    from tpuctl.flows.stack.plan import Prepared
    from tpuctl.model.events import JobEnded
    from tpuctl.model.jobs.job import JobRecord
    from tpuctl.model.jobs.sweep import SweepValues
    from tpuctl.model.status.status import Down

Decision = Callable[[str], bool]  # whether to wait for the job that is described


def refuse_to_wait(_: str) -> bool:
    return False


@dataclass(frozen=True)
class FollowResult:
    """The result of following a job."""

    exit_code: int
    still_running: bool = False  # detached from the job
    was_stopped: bool = False  # by Ctrl-C
    is_urgent: bool = False  # this process is about to be killed: hurry

    @property
    def is_interrupted(self) -> bool:
        return self.still_running or self.was_stopped


@dataclass
class RunState:
    """The state of a run, updated as it proceeds and so available after an exception too."""

    is_coming_up: bool = False
    has_started: bool = False  # resources may have been created, or the job started
    record: JobRecord | None = None  # of the last job that was started
    records: list[JobRecord] = field(default_factory=list)  # of all of them
    job_ended: JobEnded | None = None  # the last job, if it has
    follow_result: FollowResult | None = None
    down_result: Down | None = None  # what remains of the stack after `down`
    down_exit_code: int | None = None  # of `down` alone


@dataclass(frozen=True)
class RunOptions:
    """What a run does besides the job."""

    up: bool = False  # bring the stack up first
    down: bool = False  # take it down at the end
    each: Sequence[SweepValues] = ()  # a job for each, with these values added to its arguments
    confirm: Callable[[Prepared], None] | None = None  # receives the plan of `up`
    waits: Decision = refuse_to_wait  # if another job uses the chips
    all_workers: bool = False  # show the logs of all
    part: LogRange = WHOLE_LOG
    seconds: float | None = None  # of the job's timeout, to show
