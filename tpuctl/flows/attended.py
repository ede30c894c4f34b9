"""Following a job while somebody may press Ctrl-C: once leaves the job, a second one stops it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace

from tpuctl.flows.context import Context
from tpuctl.flows.follow import stop_job
from tpuctl.flows.recover import follow_to_the_end
from tpuctl.flows.signals import Pressed, Presses
from tpuctl.model.events import Event, LogChunk, Note
from tpuctl.model.job import JobRecord
from tpuctl.model.log_range import WHOLE, LogPart

__all__ = ["Followed", "follow_attended", "going_on"]

INTERRUPTED, STOPPED, TIMED_OUT = 130, 143, 124
SECOND_THOUGHTS = 3.0  # seconds in which another Ctrl-C stops the job
GRACE = 30.0  # seconds that a stopped job has to end by itself
HURRY = 5.0  # seconds that a job has to end by itself where whoever sent SIGTERM is about to kill
LATE = 60.0  # seconds that a job's own machines may be late to end it at its time limit

STOPPING = "Stopping job {}: it has {:.0f} seconds to end by itself."
GOES_ON = """
Job {job} goes on. Come back to it with
    tpuctl logs -f {job}{more}
Ctrl-C again within {seconds:.0f} seconds stops it."""
STAYS = """
Job {job} goes on, and the stack stays up for it, and is charged. Come back to it with
    tpuctl logs -f {job}{more}
and take the stack down once it has ended:
    tpuctl wait {job}
    tpuctl down
Ctrl-C again within {seconds:.0f} seconds stops it and takes the stack down now."""


@dataclass(frozen=True)
class Followed:
    """How following ended."""

    exit_code: int
    goes_on: bool = False  # the job does: it was only left
    in_a_hurry: bool = False  # whoever ended it gives little time for what is left to do


async def follow_attended(
    context: Context,
    record: JobRecord,
    presses: Presses,
    *,
    all_workers: bool = False,
    part: LogPart = WHOLE,
    seconds: float | None = None,
    goes_down: bool = False,
) -> Followed:
    """The job's log until it ends, or until Ctrl-C: the job goes on, unless there are two.

    After `seconds` the job is stopped, if its machines did not end it by then. `goes_down` says
    that the stack is taken down afterwards; then one Ctrl-C without a terminal, as cancelled CI
    jobs are sent, ends the job as SIGTERM does.
    """
    return await _Following(context, record, presses, all_workers, part, goes_down).run(seconds)


class _Following:
    """One job being followed, and what is done about it when keys are pressed."""

    def __init__(
        self,
        context: Context,
        record: JobRecord,
        presses: Presses,
        all_workers: bool,
        part: LogPart,
        goes_down: bool,
    ) -> None:
        self.show = context.emit
        self.context = replace(context, emit=self.count)
        self.record = record
        self.presses = presses
        self.all_workers = all_workers
        self.part = part
        self.shown: int | None = None  # up to this byte
        self.attempt = record.attempt
        self.goes_down = goes_down

    def count(self, event: Event) -> None:
        """Know where the log has to go on."""
        if isinstance(event, LogChunk):
            self.shown = event.offset + len(event.data)
            self.attempt = event.attempt
        self.show(event)

    async def run(self, seconds: float | None) -> Followed:
        work = follow_to_the_end(
            self.context, self.record, all_workers=self.all_workers, part=self.part
        )
        limit = seconds + LATE if seconds is not None else None
        try:
            return Followed(await self.presses.unless(work, seconds=limit, say=self._left))
        except TimeoutError:
            self.show(Note(f"Job {self.record.id} did not end at its time limit."))
            await self._stop()
            return Followed(TIMED_OUT)
        except Pressed as pressed:
            last: Pressed | None = pressed
            if not self._is_final(pressed):
                last = await self.presses.next(SECOND_THOUGHTS)
        if last is None:
            return Followed(INTERRUPTED, goes_on=True)
        return await self._stop(in_a_hurry=self._is_final(last))

    def _is_final(self, pressed: Pressed) -> bool:
        return self.goes_down and pressed.is_final

    def _left(self, pressed: Pressed) -> None:
        if self._is_final(pressed):
            return
        more = going_on(self.part, self.shown, all_workers=self.all_workers)
        more += f" --attempt {self.attempt}"  # another one's bytes are counted anew
        text = STAYS if self.goes_down else GOES_ON
        self.show(Note(text.format(job=self.record.id, more=more, seconds=SECOND_THOUGHTS)))

    async def _stop(self, *, in_a_hurry: bool = False) -> Followed:
        """End the job; another Ctrl-C does not wait for it."""
        grace = HURRY if in_a_hurry else GRACE
        self.show(Note(STOPPING.format(self.record.id, grace)))
        work = stop_job(self.context, self.record, grace=grace)
        try:
            await self.presses.unless(work, seconds=HURRY + 1 if in_a_hurry else None)
        except (Pressed, TimeoutError):
            self.show(Note(f"Job {self.record.id} is still being stopped."))
        else:
            self.show(Note(f"Job {self.record.id} was stopped."))
        return Followed(STOPPED, in_a_hurry=in_a_hurry)


def going_on(part: LogPart | None, shown: int | None, *, all_workers: bool) -> str:
    """The flags with which `logs -f` goes on at byte `shown`, or, without one, where it began."""
    part = part or WHOLE
    words = []
    if all_workers:
        words = ["--all-workers"]
    elif shown is not None:
        words = ["--offset", str(shown)]
    if "--offset" not in words:
        words += ["--offset", str(part.offset)] if part.offset else []
        words += ["--tail", str(part.lines)] if part.lines is not None else []
        words += ["--since", part.since.isoformat(timespec="seconds")] if part.since else []
    if part.pattern is not None:
        words += ["--grep", part.pattern.pattern]
    return "".join(f" {shlex.quote(word)}" for word in words)
