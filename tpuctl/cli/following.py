"""Following a job in a terminal, until it ends or Ctrl-C: what several commands do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from tpuctl.cli.state import State

if TYPE_CHECKING:
    from tpuctl.api import Tpuctl
    from tpuctl.cli.presses import Pressed, Presses
    from tpuctl.model.events import Emit, Event
    from tpuctl.model.job import JobRecord
    from tpuctl.model.log_range import LogPart

__all__ = ["PANEL", "AllWorkers", "Followed", "follow_here", "remember"]

PANEL = "Jobs"
INTERRUPTED, STOPPED, TIMED_OUT = 130, 143, 124
SECOND_THOUGHTS = 3.0  # seconds in which another Ctrl-C stops the job
GRACE = 30.0  # seconds that a stopped job has to end by itself
HURRY = 5.0  # seconds that a job has to end by itself where whoever sent SIGTERM is about to kill
LATE = 60.0  # seconds that a job's own machines may be late to end it at its time limit

STOPPING = "Stopping job {}: it has {:.0f} seconds to end by itself."
GOES_ON = """
Job {job} goes on. Come back to it with
    {logs}
Ctrl-C again within {seconds:.0f} seconds stops it."""
STAYS = """
Job {job} goes on, and the stack stays up for it, and is charged. Come back to it with
    {logs}
and take the stack down once it has ended:
    {wait}
    {down}
Ctrl-C again within {seconds:.0f} seconds stops it and takes the stack down now."""

AllWorkers = Annotated[
    bool, typer.Option("--all-workers", help="All workers' logs, with their names.")
]


@dataclass(frozen=True)
class Followed:
    """How following ended."""

    exit_code: int
    goes_on: bool = False  # the job does: it was only left
    in_a_hurry: bool = False  # whoever ended it gives little time for what is left to do


def remember(state: State, record: JobRecord, emit: Emit) -> Emit:
    """`emit`, with the envelope's data told of the job, and how it ends when it does.

    `job_exit_code` is the job's own: the envelope's `exit_code` may be one of tpuctl's.
    """
    from tpuctl.model.events import JobEnded

    data: dict[str, str | int | None] = {"job": record.id, "output": record.output}
    data |= {"state": None, "job_exit_code": None}
    state.data = data

    def emit_and_note(event: Event) -> None:
        if isinstance(event, JobEnded):
            own = event.exit_code if event.is_own else None
            data.update(state=event.state, job_exit_code=own)
        emit(event)

    return emit_and_note


async def follow_here(
    state: State,
    tpuctl: Tpuctl,
    record: JobRecord,
    *,
    all_workers: bool,
    part: LogPart | None = None,
    seconds: float | None = None,
    presses: Presses | None = None,
    goes_down: bool = False,
) -> Followed:
    """The job's log until it ends, or until Ctrl-C: the job goes on, unless there are two.

    After `seconds` the job is stopped, if its machines did not end it by then. `goes_down` says
    that the stack is taken down afterwards; then one Ctrl-C without a terminal, as cancelled CI
    jobs are sent, ends the job as SIGTERM does.
    """
    from contextlib import nullcontext

    from tpuctl.cli.presses import Presses

    with Presses() if presses is None else nullcontext(presses) as heard:
        following = _Following(state, tpuctl, record, heard, all_workers, part, goes_down)
        return await following.run(seconds)


class _Following:
    """One job being followed, and what is done about it when keys are pressed."""

    def __init__(
        self,
        state: State,
        tpuctl: Tpuctl,
        record: JobRecord,
        presses: Presses,
        all_workers: bool,
        part: LogPart | None,
        goes_down: bool,
    ) -> None:
        self.state = state
        self.tpuctl = tpuctl
        self.record = record
        self.presses = presses
        self.all_workers = all_workers
        self.part = part
        self.shown: int | None = None  # up to this byte
        self.attempt = record.attempt
        self.goes_down = goes_down
        self.show = remember(state, record, tpuctl.emit)
        tpuctl.emit = self.count

    def count(self, event: Event) -> None:
        """Know where the log has to go on."""
        from tpuctl.model.events import LogChunk

        if isinstance(event, LogChunk):
            self.shown = event.offset + len(event.data)
            self.attempt = event.attempt
        self.show(event)

    def note(self, text: str) -> None:
        from tpuctl.model.events import Note

        self.show(Note(text))

    async def run(self, seconds: float | None) -> Followed:
        from tpuctl.cli.presses import Pressed

        work = self.tpuctl.follow(self.record, all_workers=self.all_workers, part=self.part)
        limit = seconds + LATE if seconds is not None else None
        try:
            return Followed(await self.presses.unless(work, seconds=limit, say=self._left))
        except TimeoutError:
            self.note(f"Job {self.record.id} did not end at its time limit.")
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
        typed, job = self.state.typed, self.record.id
        more = going_on(self.part, self.shown, all_workers=self.all_workers)
        more += f" --attempt {self.attempt}"  # another one's bytes are counted anew
        self.note(
            (STAYS if self.goes_down else GOES_ON).format(
                job=job,
                logs=f"{typed} logs -f {job}{more}",
                wait=f"{typed} wait {job}",
                down=f"{typed} down",
                seconds=SECOND_THOUGHTS,
            )
        )

    async def _stop(self, *, in_a_hurry: bool = False) -> Followed:
        """End the job; another Ctrl-C does not wait for it."""
        from tpuctl.cli.presses import Pressed

        grace = HURRY if in_a_hurry else GRACE
        self.note(STOPPING.format(self.record.id, grace))
        work = self.tpuctl.stop(self.record, grace=grace)
        try:
            await self.presses.unless(work, seconds=HURRY + 1 if in_a_hurry else None)
        except (Pressed, TimeoutError):
            self.note(f"Job {self.record.id} is still being stopped.")
        else:
            self.note(f"Job {self.record.id} was stopped.")
        return Followed(STOPPED, in_a_hurry=in_a_hurry)


def going_on(part: LogPart | None, shown: int | None, *, all_workers: bool) -> str:
    """The flags with which `logs -f` goes on at byte `shown`, or, without one, where it began."""
    import shlex

    words = []
    if all_workers:
        words = ["--all-workers"]
    elif shown is not None:
        words = ["--offset", str(shown)]
    if part is not None and "--offset" not in words:
        words += ["--offset", str(part.offset)] if part.offset else []
        words += ["--tail", str(part.lines)] if part.lines is not None else []
        words += ["--since", part.since.isoformat(timespec="seconds")] if part.since else []
    if part is not None and part.pattern is not None:
        words += ["--grep", part.pattern.pattern]
    return "".join(f" {shlex.quote(word)}" for word in words)
