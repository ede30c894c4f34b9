"""`run`: a script on a stack's workers, from the check to the end; up first and down afterwards."""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from tpuctl.engine.step import step
from tpuctl.errors import Conflict, Diagnostic, TpuctlError
from tpuctl.flows.attended import Followed, follow_attended
from tpuctl.flows.context import Context
from tpuctl.flows.down import down as take_down
from tpuctl.flows.follow import follow
from tpuctl.flows.handover import hand_over
from tpuctl.flows.plan import Prepared, plan
from tpuctl.flows.recover import follow_to_the_end
from tpuctl.flows.rehearsals import rehearsed_before
from tpuctl.flows.signals import Pressed, Presses, Unheard
from tpuctl.flows.submission import Submission, placed
from tpuctl.flows.submit import submit
from tpuctl.flows.up import up as bring_up
from tpuctl.flows.workers import connections, nodes_of
from tpuctl.jobs.start_barrier import begin
from tpuctl.model.events import (
    Emit,
    Event,
    JobEnded,
    Note,
    Outcome,
    Planned,
    PlannedStep,
    StepFinished,
    StepProgress,
    StepStarted,
    Warned,
)
from tpuctl.model.job import Form, JobRecord, as_argument
from tpuctl.model.log_range import WHOLE, LogPart
from tpuctl.model.stack import Stack
from tpuctl.model.status import Down
from tpuctl.preflight.submit_gate import check_runnable, check_setup, runnable

__all__ = [
    "PHASES",
    "Ran",
    "planned_phases",
    "prepare",
    "run",
    "start",
    "up_and_start",
    "wait_until_running",
]

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
LEFT = "what is left of the stack is still there, and charged"
DOWN_AGAIN = "Take it away with\n    tpuctl down"
NO_JOB_LEFT = Diagnostic(
    "Interrupted", "no job was left running", hint="To be sure, see\n    tpuctl jobs"
)

NOT_REHEARSED = "Not rehearsed as it is. What would fail on a TPU is found on this machine with"
UNWATCHED = (
    "When its node is taken away the job goes on at your next `tpuctl wait` or `tpuctl logs -f`, "
    "on any machine: nobody else watches over it. With controller: {} in the stack file it goes "
    "on by itself."
)


@dataclass
class Ran:
    """How far a run has come: filled on the way, so that it is known also of one that raised."""

    is_coming_up: bool = False
    has_begun: bool = False  # something may have been made, or started
    record: JobRecord | None = None  # of the job, once it has started
    ended: JobEnded | None = None
    followed: Followed | None = None
    left: Down | None = None  # what taking the stack down left of it
    down_code: int | None = None  # the exit code that taking it down would have alone


async def run(
    context: Context,
    submission: Submission,
    ran: Ran | None = None,
    *,
    up: bool = False,
    down: bool = False,
    confirm: Callable[[Prepared], None] | None = None,
    all_workers: bool = False,
    part: LogPart = WHOLE,
    seconds: float | None = None,
    attended: bool = False,
) -> int:
    """Bring the stack up if requested, start the job, follow it to its end, and take the
    stack down if requested, whatever happened, unless the job was left running.

    The exit code is the job's. Where somebody attends it, Ctrl-C leaves the job or stops it, and
    what went wrong is told before the stack goes: its exit code comes first, that of taking down
    where nothing else went wrong. Else it is raised once the stack is gone; Conflict where the job
    did well and something that costs money is left.
    """
    ran = ran or Ran()
    with Presses() if attended and down else Unheard() as presses:
        try:
            ran.record = await presses.unless(
                up_and_start(context, submission, ran, presses, up=up, confirm=confirm)
            )
            ran.followed = await _follow(
                context, ran, presses, all_workers, part, seconds, attended=attended, down=down
            )
        except BaseException as error:
            if not down or not ran.has_begun:
                raise
            if not attended:
                await take_down(context)
                raise
            if not isinstance(error, TpuctlError | Pressed):
                await _take_down(context, ran, presses)
                raise
            ran.followed = _told(error, context.emit)
        if not down or ran.followed.goes_on:
            return ran.followed.exit_code
        if attended:
            ran.down_code = await _take_down(context, ran, presses)
            return ran.followed.exit_code or ran.down_code
        ran.left = await take_down(context)
    if ran.left.leaks and not ran.followed.exit_code:
        charged = ", ".join(one.address for one in ran.left.leaks)
        raise Conflict("Still charged", charged, hint=DOWN_AGAIN)
    return ran.followed.exit_code


async def up_and_start(
    context: Context,
    submission: Submission,
    ran: Ran,
    presses: Presses | Unheard | None = None,
    *,
    up: bool,
    confirm: Callable[[Prepared], None] | None,
) -> JobRecord:
    """Bring the stack up if requested, and start the job."""
    presses = presses or Unheard()
    if up:
        prepared = await plan(context)
        if confirm is not None and not prepared.plan.is_empty:
            confirm(prepared)
        context.emit(planned_phases(AFTER_CHECK))
        ran.has_begun = ran.is_coming_up = True
        presses.hear(signal.SIGTERM)
        await bring_up(context, prepared=prepared)
        ran.is_coming_up = False
    ran.has_begun = True
    presses.hear(signal.SIGTERM)
    return await start(context, submission)


async def _follow(
    context: Context,
    ran: Ran,
    presses: Presses | Unheard,
    all_workers: bool,
    part: LogPart,
    seconds: float | None,
    *,
    attended: bool,
    down: bool,
) -> Followed:
    """The last phase; attended, it is told as a step that ends as the job does."""
    assert ran.record is not None
    if not attended:
        code = await follow_to_the_end(context, ran.record, all_workers=all_workers, part=part)
        return Followed(code)
    phase = _LogPhase(ran, context.emit)
    try:
        with nullcontext(presses) if isinstance(presses, Presses) else Presses() as heard:
            return await follow_attended(
                replace(context, emit=phase.emit),
                ran.record,
                heard,
                all_workers=all_workers,
                part=part,
                seconds=seconds,
                goes_down=down,
            )
    finally:
        phase.leave()


def _told(error: TpuctlError | Pressed, emit: Emit) -> Followed:
    """What went wrong, told before the stack is taken down for it."""
    if isinstance(error, TpuctlError):
        for diagnostic in error.diagnostics:
            emit(Warned(diagnostic, is_error=True))
        return Followed(error.exit_code)
    emit(Warned(NO_JOB_LEFT, is_error=True))
    return Followed(error.exit_code, in_a_hurry=error.is_final)


async def _take_down(context: Context, ran: Ran, presses: Presses | Unheard) -> int:
    """The exit code that it would have alone. In a hurry nothing interrupts it."""
    presses.forget()
    work = take_down(context)
    try:
        is_in_a_hurry = ran.followed is not None and ran.followed.in_a_hurry
        ran.left = await (work if is_in_a_hurry else presses.unless(work))
    except Pressed as pressed:
        problem = Diagnostic("Interrupted while taking down", LEFT, DOWN_AGAIN)
        context.emit(Warned(problem, is_error=True))
        return pressed.exit_code
    except TpuctlError as error:
        problem = Diagnostic("Stack could not be taken down", LEFT, DOWN_AGAIN)
        for diagnostic in (*error.diagnostics, problem):
            context.emit(Warned(diagnostic, is_error=True))
        return error.exit_code
    if ran.left.leaks:
        names = ", ".join(one.address for one in ran.left.leaks)
        is_free = context.cloud.endpoint.is_local
        names += "; that is, on Google: the local cloud is free" if is_free else ""
        context.emit(Warned(Diagnostic("Still charged", names, DOWN_AGAIN), is_error=True))
        return TpuctlError.exit_code
    kept = ", ".join(one.address for one in ran.left.kept)
    rest = f" but {kept}, asked to stay" if kept else ""
    context.emit(Note(f"Nothing that costs money is left{rest}."))
    return 0


class _LogPhase:
    """Following a job's log, as a step among the others."""

    def __init__(self, ran: Ran, emit: Emit) -> None:
        assert ran.record is not None
        self._ran = ran
        self._emit = emit
        self._began = time.monotonic()
        emit(StepStarted(LOG, "follow", ran.record.id))
        emit(StepProgress(LOG, "waiting for its first line"))

    def emit(self, event: Event) -> None:
        if isinstance(event, JobEnded) and self._ran.ended is None:
            self._ran.ended = event
            done = event.state == "succeeded"
            code = "" if done else f", exit code {event.exit_code}"
            words = event.state.replace("_", " ") + code
            self._end(Outcome.DONE if done else Outcome.FAILED, words)
        self._emit(event)

    def leave(self) -> None:
        """It was left before it ended, where it has not."""
        if self._ran.ended is None:
            self._end(Outcome.INTERRUPTED, "")

    def _end(self, outcome: Outcome, because: str) -> None:
        self._emit(StepFinished(LOG, outcome, time.monotonic() - self._began, because))


def planned_phases(phases: Mapping[str, str]) -> Planned:
    """What a run goes through, one after the other."""
    befores = [(), *((name,) for name in phases)]
    steps = zip(phases.items(), befores, strict=False)
    return Planned(tuple(PlannedStep(name, verb, "", after) for (name, verb), after in steps))


def prepare(
    stack: Stack,
    script: str | Path,
    arguments: Sequence[str] = (),
    *,
    cloud: str,
    emit: Emit,
    form: Form = "script",
    folder: Path | None = None,
    check: bool = True,
    timeout: float | None = None,
    secrets: Mapping[str, str] | None = None,
) -> Submission:
    """What would be submitted, without any network. Raises Usage or Refused where the check
    finds that it cannot run.

    `script` is the path of a script, else as `form` says a module's name or a command's first
    word; those are of `folder`, which is shipped: the current one by default. After `timeout`
    seconds the machines end it, all its attempts taken together. `secrets` tells where further
    ones come from, by name, as `job.secrets` of the stack file does: {"HF_TOKEN": "env"}.
    """
    stack.require_makeable()  # its job may come to need another node
    wanted = runnable(str(script), form, folder)
    submission = Submission.of(
        stack,
        wanted.file,
        tuple(arguments),
        cloud=cloud,
        form=wanted.form,
        program=wanted.program,
        root=wanted.folder,
        timeout=timeout,
        secrets=secrets,
    )
    if check:
        from tpuctl.flows.check import refuse_errors

        check_runnable(wanted, submission.installation)
        refuse_errors(stack, wanted, emit)
    return submission


async def start(context: Context, submission: Submission) -> JobRecord:
    """Bundle and ship what was prepared, start it on its workers."""
    stack, cloud, emit = context.stack, context.cloud, context.emit
    with step(emit, "job/stack", "find") as finding:
        check_setup(submission.installation, are_apart=cloud.endpoint.runs_startup_scripts)
        nodes = await nodes_of(stack, cloud)
        submission = await placed(submission, stack, cloud, nodes)
        finding.result = f"{nodes[0].accelerator_type} in {nodes[0].zone}"
    async with connections(context) as transports:
        chosen = {worker: transports[worker] for worker in submission.workers}
        record = await submit(submission, context.store, chosen, emit)
    if context.controller is None and not rehearsed_before(stack, record):
        emit(Note(f"{NOT_REHEARSED}\n    tpuctl rehearse {_typed(submission)}"))
    is_watched = await hand_over(stack, cloud, record, context.keys, emit)
    if not is_watched and stack.is_spot and record.retries.preemption:
        emit(Note(UNWATCHED))
    return record


def _typed(submission: Submission) -> str:
    script = as_argument(str(submission.script))
    words = ["-m", submission.program] if submission.form == "module" else [script]
    return shlex.join([*words, *(["--", *submission.args] if submission.args else [])])


async def wait_until_running(context: Context, record: JobRecord) -> int | None:
    """Wait until the job runs on all its workers. Where it has failed on one instead, its log
    and what went wrong are emitted, and its exit code is the answer."""
    async with connections(context) as transports:
        chosen = {worker: transports[worker] for worker in record.workers}
        records = await begin(record, chosen, until_running=True)
        failed = [one.worker for one in records.values() if one.has_failed]
        if not failed:
            return None
        return await follow(record, context.store, chosen, context.emit, shown=failed[:1])
