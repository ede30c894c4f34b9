"""One `run` from the plan to the end: with up first and down afterwards if requested."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuctl.cli.following import Followed, follow_here
from tpuctl.cli.state import AFTER_INTERRUPT, Interrupted, State
from tpuctl.errors import Diagnostic, TpuctlError, Usage

if TYPE_CHECKING:
    from tpuctl.api import Tpuctl
    from tpuctl.cli.presses import Presses
    from tpuctl.flows.provision import Prepared
    from tpuctl.flows.submission import Submission
    from tpuctl.model.events import Emit, Event, Outcome
    from tpuctl.model.job import JobRecord

__all__ = ["Running", "require_sense"]

LEFT = "what is left of the stack is still there, and charged"
DOWN_AGAIN = "Take it away with\n    tpuctl down"
# What a run goes through, and does there; the log follows.
PHASES = {
    "job/check": "check",
    "job/stack": "find",
    "job/bundle": "make",
    "job/upload": "send",
    "job/start": "start",
}
AFTER_CHECK = {name: verb for name, verb in PHASES.items() if name != "job/check"}
LOG = "job/log"


def require_sense(*, down: bool, detach: bool) -> None:
    """Raises Usage for options that contradict each other."""
    if down and detach:
        raise Usage(
            "Options contradict",
            "with --detach nobody waits for the job's end, after which --down takes the stack away",
            hint="Leave --detach out. Or leave --down out: with limits.idle in the stack file the "
            "machines delete themselves some time after the job.",
            where="--down",
        )


@dataclass
class Running:
    """What was asked for, and how far it has come.

    `submission` says what to run, without any network: what is wrong with it is found before
    anything is made. `ask` refuses the plan of what is to be made by raising.
    """

    state: State
    tpuctl: Tpuctl
    submission: Callable[[], Submission]
    ask: Callable[[Prepared], None]
    up: bool = False
    all_workers: bool = False
    seconds: float | None = None  # that the job may take
    checks: bool = True
    has_begun: bool = False
    presses: Presses | None = None
    record: JobRecord | None = None  # of the job, once it has started

    async def start(self) -> JobRecord:
        """Bring the stack up if requested, and start the job."""
        self._plan_phases(PHASES if self.checks and not self.up else {})
        wanted = self._checked()
        if self.up:
            prepared = await self.tpuctl.plan()
            if not prepared.plan.is_empty:
                self.ask(prepared)
            self._plan_phases(AFTER_CHECK)
            self._begin()
            self.state.after_interrupt = AFTER_INTERRUPT["up"]
            await self.tpuctl.bring_up(prepared)
            self.state.after_interrupt = ()
        self._begin()
        return await self.tpuctl.start(wanted)

    def _checked(self) -> Submission:
        """What is to be run, checked first if requested."""
        from tpuctl.engine.step import step

        if not self.checks:
            return self.submission()
        with step(self.tpuctl.emit, "job/check", "check") as checking:
            wanted = self.submission()
            checking.result = "nothing stands in the way"
        return wanted

    def _plan_phases(self, phases: Mapping[str, str]) -> None:
        """Tell what comes."""
        from tpuctl.model.events import Planned, PlannedStep

        names = list(phases)
        befores = [(), *((name,) for name in names)]
        steps = zip(names, phases.values(), befores, strict=False)
        if names:
            self.tpuctl.emit(
                Planned(tuple(PlannedStep(name, verb, "", after) for name, verb, after in steps))
            )

    def _begin(self) -> None:
        import signal

        self.has_begun = True
        if self.presses is not None:
            self.presses.hear(signal.SIGTERM)

    async def follow(self) -> int:
        """Start the job and follow it: its exit code, or that of leaving it."""
        record = await self.start()
        followed = await self._follow_log(record)
        if not followed.goes_on:
            self._tell_next(record)
        return followed.exit_code

    async def _follow_log(self, record: JobRecord, presses: Presses | None = None) -> Followed:
        """The last phase, told as a step that ends as the job does."""
        phase = _LogPhase(record, self.tpuctl.emit)
        self.tpuctl.emit = phase.emit
        try:
            return await follow_here(
                self.state,
                self.tpuctl,
                record,
                all_workers=self.all_workers,
                seconds=self.seconds,
                presses=presses,
                goes_down=presses is not None,
            )
        finally:
            phase.leave()

    def _tell_next(self, record: JobRecord, *, is_gone: bool = False) -> None:
        """What can be typed after the job's end; `is_gone` is the stack."""
        from tpuctl.model.events import Note

        data = self.state.data if isinstance(self.state.data, dict) else {}
        typed = self.state.typed
        commands = [f"{typed} jobs show {record.id}", f"{typed} report {record.id}"]
        if data.get("state") != "succeeded":
            commands = [f"{typed} explain {record.id}"]
        if not is_gone:
            commands.append(f"{typed} down")
        if not self.state.json:
            self.tpuctl.emit(Note("\n".join(["", "Next:", *(f"    {one}" for one in commands)])))

    async def follow_and_take_down(self) -> int:
        """The same, and the stack is taken down whatever happened, unless the job goes on.

        What went wrong first decides about the exit code: that of taking down is told where
        nothing else did. What is refused before anything was begun leaves everything as it is.
        """
        from tpuctl.cli.presses import Presses

        with Presses() as presses:
            self.presses = presses
            try:
                followed = await self._follow(presses)
            except TpuctlError as error:
                if not self.has_begun:
                    raise
                self.state.problems(error.diagnostics)
                followed = Followed(error.exit_code)
            except BaseException:
                if self.has_begun:
                    await self._take_down(presses)
                raise
            if followed.goes_on:
                return followed.exit_code
            taken = await self._take_down(presses, in_a_hurry=followed.in_a_hurry)
            if self.record is not None and not followed.in_a_hurry:
                self._tell_next(self.record, is_gone=not taken)
            return followed.exit_code or taken

    async def _follow(self, presses: Presses) -> Followed:
        from tpuctl.cli.presses import Pressed

        try:
            record = await presses.unless(self.start())
        except Pressed as pressed:
            if not self.has_begun:
                raise Interrupted from None
            self.state.problems(
                [
                    Diagnostic(
                        "Interrupted",
                        "no job was left running",
                        hint="To be sure, see\n    tpuctl jobs",
                    )
                ]
            )
            return Followed(pressed.exit_code, in_a_hurry=pressed.is_final)
        self.record = record
        return await self._follow_log(record, presses)

    async def _take_down(self, presses: Presses, *, in_a_hurry: bool = False) -> int:
        """The exit code that it would have alone. In a hurry nothing interrupts it."""
        from tpuctl.cli.presses import Pressed
        from tpuctl.model.events import Note
        from tpuctl.view.stack import remaining_data

        presses.forget()
        try:
            work = self.tpuctl.down()
            done = await (work if in_a_hurry else presses.unless(work))
        except Pressed as pressed:
            self.state.problems([Diagnostic("Interrupted while taking down", LEFT, DOWN_AGAIN)])
            return pressed.exit_code
        except TpuctlError as error:
            left = Diagnostic("Stack could not be taken down", LEFT, DOWN_AGAIN)
            self.state.problems([*error.diagnostics, left])
            return error.exit_code
        data = self.state.data if isinstance(self.state.data, dict) else {}
        self.state.data = {**data, "remaining": remaining_data(done.remaining)}
        if done.leaks:
            names = ", ".join(leak.address for leak in done.leaks)
            names += "; that is, on Google: the local cloud is free" if self.state.is_free else ""
            self.state.problems([Diagnostic("Still charged", names, DOWN_AGAIN)])
            return TpuctlError.exit_code
        kept = [one for one in done.remaining if one.state == "kept" and one.is_billable]
        rest = f" but {', '.join(one.address for one in kept)}, asked to stay" if kept else ""
        self.tpuctl.emit(Note(f"Nothing that costs money is left{rest}."))
        return 0


class _LogPhase:
    """Following a job's log, as a step among the others."""

    def __init__(self, record: JobRecord, emit: Emit) -> None:
        import time

        from tpuctl.model.events import StepProgress, StepStarted

        self._emit = emit
        self._now = time.monotonic
        self._began = self._now()
        self._has_ended = False
        emit(StepStarted(LOG, "follow", record.id))
        emit(StepProgress(LOG, "waiting for its first line"))

    def emit(self, event: Event) -> None:
        from tpuctl.model.events import JobEnded, Outcome

        if isinstance(event, JobEnded):
            done = event.state == "succeeded"
            code = "" if done else f", exit code {event.exit_code}"
            self._end(Outcome.DONE if done else Outcome.FAILED, _in_words(event.state) + code)
        self._emit(event)

    def leave(self) -> None:
        """It was left before it ended, where it has not."""
        from tpuctl.model.events import Outcome

        self._end(Outcome.INTERRUPTED, "")

    def _end(self, outcome: Outcome, because: str) -> None:
        from tpuctl.model.events import StepFinished

        if not self._has_ended:
            self._has_ended = True
            self._emit(StepFinished(LOG, outcome, self._now() - self._began, because))


def _in_words(state: str) -> str:
    return state.replace("_", " ")
