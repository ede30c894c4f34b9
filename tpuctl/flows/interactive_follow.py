"""Following a job while somebody may press Ctrl-C: once leaves the job, a second one stops it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace

from tpuctl.flows.context import Context
from tpuctl.flows.follow import stop_job
from tpuctl.flows.recover import follow_to_end
from tpuctl.flows.signals import SignalQueue, SignalReceived
from tpuctl.model.events import Event, LogChunk, Note
from tpuctl.model.job import JobRecord
from tpuctl.model.log_range import WHOLE_LOG, LogRange

__all__ = ["FollowResult", "follow_interactive", "resume_flags"]

INTERRUPTED, STOPPED, TIMED_OUT = 130, 143, 124
CONFIRM_SECONDS = 3.0  # seconds in which another Ctrl-C stops the job
GRACE_SECONDS = 30.0  # seconds that a stopped job has to end by itself
URGENT_GRACE_SECONDS = (
    5.0  # seconds that a job has to end by itself where whoever sent SIGTERM is about to kill
)
LATE_SECONDS = 60.0  # seconds that a job's own machines may be late to end it at its time limit

STOPPING = "Stopping job {}: it has {:.0f} seconds to end by itself."
DETACHED = """
Job {job} goes on. Come back to it with
    tpuctl logs -f {job}{more}
Ctrl-C again within {seconds:.0f} seconds stops it."""
DETACHED_STACK_STAYS = """
Job {job} goes on, and the stack stays up for it, and is charged. Come back to it with
    tpuctl logs -f {job}{more}
and take the stack down once it has ended:
    tpuctl wait {job}
    tpuctl down
Ctrl-C again within {seconds:.0f} seconds stops it and takes the stack down now."""


@dataclass(frozen=True)
class FollowResult:
    """How following ended."""

    exit_code: int
    still_running: bool = False  # the job does: it was only left
    is_urgent: bool = False  # whoever ended it gives little time for what is left to do


async def follow_interactive(
    context: Context,
    record: JobRecord,
    signals: SignalQueue,
    *,
    all_workers: bool = False,
    part: LogRange = WHOLE_LOG,
    seconds: float | None = None,
    takes_down: bool = False,
) -> FollowResult:
    """The job's log until it ends, or until Ctrl-C: the job goes on, unless there are two.

    After `seconds` the job is stopped, if its machines did not end it by then. `goes_down` says
    that the stack is taken down afterwards; then one Ctrl-C without a terminal, as cancelled CI
    jobs are sent, ends the job as SIGTERM does.
    """
    return await _InteractiveFollow(context, record, signals, all_workers, part, takes_down).run(
        seconds
    )


class _InteractiveFollow:
    """One job being followed, and what is done about it when keys are pressed."""

    def __init__(
        self,
        context: Context,
        record: JobRecord,
        signals: SignalQueue,
        all_workers: bool,
        part: LogRange,
        takes_down: bool,
    ) -> None:
        self.emit = context.emit
        self.context = replace(context, emit=self.track_offset)
        self.record = record
        self.signals = signals
        self.all_workers = all_workers
        self.part = part
        self.shown_offset: int | None = None  # up to this byte
        self.attempt = record.attempt
        self.takes_down = takes_down

    def track_offset(self, event: Event) -> None:
        """Know where the log has to go on."""
        if isinstance(event, LogChunk):
            self.shown_offset = event.offset + len(event.data)
            self.attempt = event.attempt
        self.emit(event)

    async def run(self, seconds: float | None) -> FollowResult:
        work = follow_to_end(
            self.context, self.record, all_workers=self.all_workers, part=self.part
        )
        timeout = seconds + LATE_SECONDS if seconds is not None else None
        try:
            return FollowResult(
                await self.signals.run(work, seconds=timeout, on_signal=self._announce_detach)
            )
        except TimeoutError:
            self.emit(Note(f"Job {self.record.id} did not end at its time limit."))
            await self._stop()
            return FollowResult(TIMED_OUT)
        except SignalReceived as interrupted:
            last: SignalReceived | None = interrupted
            if not self._is_final(interrupted):
                last = await self.signals.wait(CONFIRM_SECONDS)
        if last is None:
            return FollowResult(INTERRUPTED, still_running=True)
        return await self._stop(is_urgent=self._is_final(last))

    def _is_final(self, interrupted: SignalReceived) -> bool:
        return self.takes_down and interrupted.is_final

    def _announce_detach(self, interrupted: SignalReceived) -> None:
        if self._is_final(interrupted):
            return
        flags = resume_flags(self.part, self.shown_offset, all_workers=self.all_workers)
        flags += f" --attempt {self.attempt}"  # another one's bytes are counted anew
        text = DETACHED_STACK_STAYS if self.takes_down else DETACHED
        self.emit(Note(text.format(job=self.record.id, more=flags, seconds=CONFIRM_SECONDS)))

    async def _stop(self, *, is_urgent: bool = False) -> FollowResult:
        """End the job; another Ctrl-C does not wait for it."""
        grace = URGENT_GRACE_SECONDS if is_urgent else GRACE_SECONDS
        self.emit(Note(STOPPING.format(self.record.id, grace)))
        work = stop_job(self.context, self.record, grace=grace)
        try:
            await self.signals.run(work, seconds=URGENT_GRACE_SECONDS + 1 if is_urgent else None)
        except (SignalReceived, TimeoutError):
            self.emit(Note(f"Job {self.record.id} is still being stopped."))
        else:
            self.emit(Note(f"Job {self.record.id} was stopped."))
        return FollowResult(STOPPED, is_urgent=is_urgent)


def resume_flags(part: LogRange | None, shown_offset: int | None, *, all_workers: bool) -> str:
    """The flags with which `logs -f` goes on at byte `shown`, or, without one, where it began."""
    part = part or WHOLE_LOG
    words = []
    if all_workers:
        words = ["--all-workers"]
    elif shown_offset is not None:
        words = ["--offset", str(shown_offset)]
    if "--offset" not in words:
        words += ["--offset", str(part.offset)] if part.offset else []
        words += ["--tail", str(part.lines)] if part.lines is not None else []
        words += ["--since", part.since.isoformat(timespec="seconds")] if part.since else []
    if part.pattern is not None:
        words += ["--grep", part.pattern.pattern]
    return "".join(f" {shlex.quote(word)}" for word in words)
