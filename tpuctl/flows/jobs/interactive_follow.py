"""Follow a job interactively: Ctrl-C detaches from the job, a second one stops it."""

from __future__ import annotations

import shlex
from dataclasses import replace

from tpuctl.flows.context import Context
from tpuctl.flows.jobs.follow import stop_job
from tpuctl.flows.jobs.recover import follow_to_end
from tpuctl.flows.jobs.run_state import FollowResult
from tpuctl.flows.signals import SignalQueue, SignalReceived
from tpuctl.model.events import Event, LogChunk, Note
from tpuctl.model.jobs.job import JobRecord
from tpuctl.model.logs.log_range import WHOLE_LOG, LogRange

INTERRUPTED, STOPPED, TIMED_OUT = 130, 143, 124
CONFIRM_SECONDS = 3.0  # within which a second Ctrl-C stops the job
GRACE_SECONDS = 30.0  # between SIGTERM and SIGKILL
URGENT_GRACE_SECONDS = 5.0  # the same when this process is about to be killed itself
LATE_SECONDS = 60.0  # that the machines may take to stop a job after its timeout

STOPPING = "Stopping job {}; it has {:.0f} seconds to exit."
DETACHED = """
Job {job} keeps running. Follow it again with
    tpuctl logs -f {job}{more}
Press Ctrl-C again within {seconds:.0f} seconds to stop it."""
DETACHED_STACK_STAYS = """
Job {job} keeps running. The stack stays up for it and is charged. Follow the job again with
    tpuctl logs -f {job}{more}
and take the stack down once it has ended:
    tpuctl wait {job}
    tpuctl down
Press Ctrl-C again within {seconds:.0f} seconds to stop the job and take the stack down now."""


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
    """Emit the job's log until it ends or Ctrl-C, which detaches; a second Ctrl-C stops the job.

    After `seconds` the job is stopped, if its machines have not done so. `takes_down` means that
    the stack is taken down afterwards; then a single SIGINT without a terminal, as CI systems send
    to cancelled jobs, stops the job like SIGTERM.
    """
    return await _InteractiveFollow(context, record, signals, all_workers, part, takes_down).run(
        seconds
    )


class _InteractiveFollow:
    """A job being followed, and how signals are handled meanwhile."""

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
        self.shown_offset: int | None = None  # end of the emitted log
        self.attempt = record.attempt
        self.takes_down = takes_down

    def track_offset(self, event: Event) -> None:
        """Emit the event, and remember the offset to resume from."""
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
            self.emit(Note(f"Job {self.record.id} did not stop at its time limit."))
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
        flags += f" --attempt {self.attempt}"  # offsets are per attempt
        text = DETACHED_STACK_STAYS if self.takes_down else DETACHED
        self.emit(Note(text.format(job=self.record.id, more=flags, seconds=CONFIRM_SECONDS)))

    async def _stop(self, *, is_urgent: bool = False) -> FollowResult:
        """Stop the job; another Ctrl-C returns without waiting for it."""
        grace = URGENT_GRACE_SECONDS if is_urgent else GRACE_SECONDS
        self.emit(Note(STOPPING.format(self.record.id, grace)))
        work = stop_job(self.context, self.record, grace=grace)
        try:
            await self.signals.run(work, seconds=URGENT_GRACE_SECONDS + 1 if is_urgent else None)
        except (SignalReceived, TimeoutError):
            self.emit(Note(f"Job {self.record.id} is still being stopped."))
        else:
            self.emit(Note(f"Job {self.record.id} was stopped."))
        return FollowResult(STOPPED, was_stopped=True, is_urgent=is_urgent)


def resume_flags(part: LogRange | None, shown_offset: int | None, *, all_workers: bool) -> str:
    """The flags for `logs -f` to resume at `shown_offset`, or by default from the start again."""
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
