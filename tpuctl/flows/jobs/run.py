"""`run`: run a script on a stack's workers and follow it, with `up` before and `down` after it."""

from __future__ import annotations

import platform
import shlex
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from tpuctl.catalog import accelerator_type, host_architecture
from tpuctl.cloud.threads import in_thread
from tpuctl.engine.step import step
from tpuctl.errors import Conflict, Diagnostic, TpuctlError
from tpuctl.flows.context import Context
from tpuctl.flows.jobs.chip_holder import require_free_chips
from tpuctl.flows.jobs.follow import follow_attempt, report_result
from tpuctl.flows.jobs.interactive_follow import follow_interactive
from tpuctl.flows.jobs.job_start import submit, with_bundle
from tpuctl.flows.jobs.recover import follow_to_end
from tpuctl.flows.jobs.rehearsals import content_of, is_new_advice, rehearsed_before
from tpuctl.flows.jobs.run_state import (
    Decision,
    FollowResult,
    RunOptions,
    RunState,
    refuse_to_wait,
)
from tpuctl.flows.jobs.submission import (
    Submission,
    bind_to_nodes,
    require_all_slices,
    with_job_python,
)
from tpuctl.flows.local_cloud import machine_python
from tpuctl.flows.machines.handover import hand_over
from tpuctl.flows.machines.inventory import stack_on
from tpuctl.flows.machines.workers import connections, kept_connections, ordered_nodes
from tpuctl.flows.packages.image_packages import require_installable_on_image
from tpuctl.flows.packages.tools import ensure_tools, require_available
from tpuctl.flows.signals import NoSignals, SignalQueue, SignalReceived
from tpuctl.flows.stack.down import down as take_down
from tpuctl.flows.stack.plan import plan
from tpuctl.flows.stack.up import up as bring_up
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
    WarningIssued,
)
from tpuctl.model.jobs.job import JobKind, JobRecord, as_argument
from tpuctl.model.jobs.sweep import SweepValues, describe_values
from tpuctl.model.scripts.framework import FrameworkChoice, is_tensorflow
from tpuctl.model.stack.stack import Stack
from tpuctl.model.stack.stack_folder import other_folder_note
from tpuctl.model.status.status import NodeStatus
from tpuctl.preflight.check import program_target
from tpuctl.preflight.script_framework import runtime_warning
from tpuctl.preflight.submit_gate import (
    Runnable,
    check_runnable,
    check_setup,
    check_wheels,
    refuse_notebook,
    runnable,
)

# The steps of a run before the log, and the verb of each.
PHASES = {
    "job/check": "check",
    "job/stack": "find",
    "job/bundle": "create",
    "job/upload": "upload",
    "job/start": "start",
}
LOG = "job/log"
LEFTOVERS = "the rest of the stack may still exist and be charged"
DOWN_AGAIN = "Delete it:\n    tpuctl down"
NO_JOB_LEFT = Diagnostic("Interrupted", "no job is running", hint="To verify, run\n    tpuctl jobs")

NOT_REHEARSED = "This version was not rehearsed. To find TPU failures on this machine first, run"
NOT_RECOVERED = (
    "If the node is preempted, the job resumes at your next `tpuctl wait` or `tpuctl logs -f`, on "
    "any machine. To resume it automatically, set controller: {} in the stack file."
)


async def run(context: Context, submission: Submission, options: RunOptions) -> int:
    """Bring the stack up if requested, start the job, follow it to its end, and take the stack
    down if requested, also after an error.

    If another job uses the chips, waits for its end if `options.waits` says so, and otherwise
    raises Conflict. With `options.each`, one job after another runs, all with the files as they
    are now; a job that fails does not prevent the next one.

    Returns the job's exit code, or that of the first job that failed. Raises Conflict if the job
    succeeded but billable resources remain.
    """
    state = RunState()

    async def follow(connected: Context, record: JobRecord) -> FollowResult:
        part, all_workers = options.part, options.all_workers
        code = await follow_to_end(connected, record, all_workers=all_workers, part=part)
        return FollowResult(code)

    try:
        result = await _run_jobs(context, submission, options, state, NoSignals(), follow)
    except BaseException:
        if options.down and state.has_started:
            await take_down(context)
        raise
    if options.down:
        leaks = (await take_down(context)).leaks
        if leaks and not result.exit_code:
            charged = ", ".join(leak.address for leak in leaks)
            raise Conflict("Still charged", charged, hint=DOWN_AGAIN)
    return result.exit_code


async def run_interactively(
    context: Context, submission: Submission, options: RunOptions, state: RunState
) -> int:
    """The same in a terminal: Ctrl-C detaches from the job, or stops it and prevents the next one,
    errors are emitted before the stack is taken down, and the stack stays up if the job was left
    running. The exit code is that of the first error, including errors of `down`."""
    with SignalQueue() if options.down else NoSignals() as signals:

        async def follow(connected: Context, _: JobRecord) -> FollowResult:
            return await _follow_as_step(connected, state, signals, options)

        try:
            result = await _run_jobs(context, submission, options, state, signals, follow)
        except BaseException as error:
            if not options.down or not state.has_started:
                raise
            if not isinstance(error, TpuctlError | SignalReceived):
                await _take_down(context, state, signals)
                raise
            result = state.follow_result = _report_failure(error, context.emit)
        if not options.down or result.still_running:
            return result.exit_code
        state.down_exit_code = await _take_down(context, state, signals)
        return result.exit_code or state.down_exit_code


async def _run_jobs(
    context: Context,
    submission: Submission,
    options: RunOptions,
    state: RunState,
    signals: SignalQueue | NoSignals,
    follow: Callable[[Context, JobRecord], Awaitable[FollowResult]],
) -> FollowResult:
    """Start and follow the job or the jobs, until one is interrupted; return how the last ended,
    with the exit code of the first that failed."""
    if options.each:
        submission = await with_bundle(submission, context.emit)
    async with kept_connections(context) as connected:
        for job in _jobs(submission, options.each, context.emit):
            starting = replace(options, up=options.up and not state.records)
            record = await signals.run(up_and_start(connected, job, starting, state, signals))
            result = await follow(connected, record)
            before, state.follow_result = state.follow_result, result
            if result.is_interrupted:
                break
            if before is not None and before.exit_code:
                state.follow_result = replace(result, exit_code=before.exit_code)
    assert state.follow_result is not None
    return state.follow_result


async def up_and_start(
    context: Context,
    submission: Submission,
    options: RunOptions,
    state: RunState,
    signals: SignalQueue | NoSignals | None = None,
) -> JobRecord:
    """Bring the stack up if requested, and start the job, once no other uses the chips."""
    signals = signals or NoSignals()
    # Nothing has started until then.
    await require_free_chips(context, submission, options.waits)
    if options.up:
        if not context.stack.has_internet:
            await require_available(submission.installation)
        context = replace(context, stack=context.stack.for_framework(submission.framework))
        prepared = await plan(context)
        if options.confirm is not None and not prepared.plan.is_empty:
            options.confirm(prepared)
        context.emit(planned_phases(_phases(submission)))
        state.has_started = state.is_coming_up = True
        signals.listen(signal.SIGTERM)
        await bring_up(context, prepared=prepared)
        state.is_coming_up = False
    elif submission.bundle is not None:  # built after the plan that began with the check
        context.emit(planned_phases(_phases(submission)))
    state.has_started = True
    signals.listen(signal.SIGTERM)
    state.job_ended = None
    state.record = await _start(context, submission, is_first=not state.records)
    state.records.append(state.record)
    return state.record


def _jobs(submission: Submission, each: Sequence[SweepValues], emit: Emit) -> Iterator[Submission]:
    """The submission, or one for each of these values, with a heading before it is started."""
    if not each:
        yield submission
    for number, values in enumerate(each, 1):
        emit(Note(f"\nJob {number} of {len(each)}: {describe_values(values)}"))
        yield submission.with_values(values)


def _phases(submission: Submission) -> dict[str, str]:
    """The steps after the check, without the bundle if it is already built."""
    done = {"job/check", *(["job/bundle"] if submission.bundle is not None else [])}
    return {name: verb for name, verb in PHASES.items() if name not in done}


async def _follow_as_step(
    context: Context, state: RunState, signals: SignalQueue | NoSignals, options: RunOptions
) -> FollowResult:
    """Follow the job's log, as a step that ends with the job's outcome."""
    assert state.record is not None
    phase = _LogPhase(state, context.emit)
    try:
        with (
            nullcontext(signals)
            if isinstance(signals, SignalQueue)
            else SignalQueue() as signal_queue
        ):
            return await follow_interactive(
                replace(context, emit=phase.emit),
                state.record,
                signal_queue,
                all_workers=options.all_workers,
                part=options.part,
                seconds=options.seconds,
                takes_down=options.down,
            )
    finally:
        phase.close()


def _report_failure(error: TpuctlError | SignalReceived, emit: Emit) -> FollowResult:
    """Emit an error before the stack is taken down because of it."""
    if isinstance(error, TpuctlError):
        for diagnostic in error.diagnostics:
            emit(WarningIssued(diagnostic, is_error=True))
        return FollowResult(error.exit_code)
    emit(WarningIssued(NO_JOB_LEFT, is_error=True))
    return FollowResult(error.exit_code, is_urgent=error.is_final)


async def _take_down(context: Context, state: RunState, signals: SignalQueue | NoSignals) -> int:
    """Take the stack down; return the exit code of that alone. Not interruptible if urgent."""
    signals.clear()
    work = take_down(context)
    try:
        is_in_a_hurry = state.follow_result is not None and state.follow_result.is_urgent
        state.down_result = await (work if is_in_a_hurry else signals.run(work))
    except SignalReceived as interrupted:
        problem = Diagnostic("Interrupted during down", LEFTOVERS, DOWN_AGAIN)
        context.emit(WarningIssued(problem, is_error=True))
        return interrupted.exit_code
    except TpuctlError as error:
        problem = Diagnostic("Cannot take the stack down", LEFTOVERS, DOWN_AGAIN)
        for diagnostic in (*error.diagnostics, problem):
            context.emit(WarningIssued(diagnostic, is_error=True))
        return error.exit_code
    if state.down_result.leaks:
        names = ", ".join(leak.address for leak in state.down_result.leaks)
        is_free = context.cloud.endpoint.is_local
        names += " (on Google; the local cloud is free)" if is_free else ""
        context.emit(WarningIssued(Diagnostic("Still charged", names, DOWN_AGAIN), is_error=True))
        return TpuctlError.exit_code
    kept_names = ", ".join(resource.address for resource in state.down_result.retained)
    rest = f" except {kept_names}, kept as requested" if kept_names else ""
    context.emit(Note(f"No billable resources are left{rest}."))
    return 0


class _LogPhase:
    """Emits following the log as a step."""

    def __init__(self, state: RunState, emit: Emit) -> None:
        assert state.record is not None
        self._state = state
        self._emit = emit
        self._began = time.monotonic()
        emit(StepStarted(LOG, "follow", state.record.id))
        emit(StepProgress(LOG, "waiting for its first line"))

    def emit(self, event: Event) -> None:
        if isinstance(event, JobEnded) and self._state.job_ended is None:
            self._state.job_ended = event
            done = event.state == "succeeded"
            code = "" if done else f", exit code {event.exit_code}"
            words = event.state.replace("_", " ") + code
            self._finish(Outcome.DONE if done else Outcome.FAILED, words)
        self._emit(event)

    def close(self) -> None:
        """Mark the step as interrupted, unless the job has ended."""
        if self._state.job_ended is None:
            self._finish(Outcome.INTERRUPTED, "")

    def _finish(self, outcome: Outcome, because: str) -> None:
        self._emit(StepFinished(LOG, outcome, time.monotonic() - self._began, because))


def planned_phases(phases: Mapping[str, str]) -> Planned:
    """The steps of a run, as a sequential plan."""
    dependencies = [(), *((name,) for name in phases)]
    steps = zip(phases.items(), dependencies, strict=False)
    return Planned(tuple(PlannedStep(name, verb, "", after) for (name, verb), after in steps))


def prepare(
    stack: Stack,
    script: str | Path,
    arguments: Sequence[str] = (),
    *,
    cloud: str,
    emit: Emit,
    form: JobKind = "script",
    folder: Path | None = None,
    check: bool = True,
    python: str = "",
    timeout: float | None = None,
    secrets: Mapping[str, str] | None = None,
) -> Submission:
    """Prepare a submission, without access to Google. Raises Usage, or Refused if the check
    finds errors.

    `script` is the path of a script or, depending on `form`, a module name or the first word
    of a command, run in `folder`, which is uploaded (default: the current folder). `python` is the
    job's, instead of `job.python` in the stack file. The job is stopped after `timeout` seconds,
    counted over all attempts. `secrets` maps further secrets to their source, like `job.secrets`
    in the stack file: {"HF_TOKEN": "env"}.
    """
    return prepare_program(
        stack,
        runnable(str(script), form, folder),
        arguments,
        cloud=cloud,
        emit=emit,
        check=check,
        python=python,
        timeout=timeout,
        secrets=secrets,
    )


def prepare_program(
    stack: Stack,
    program: Runnable,
    arguments: Sequence[str] = (),
    *,
    cloud: str,
    emit: Emit,
    check: bool = True,
    python: str = "",
    timeout: float | None = None,
    secrets: Mapping[str, str] | None = None,
) -> Submission:
    """The same for a program and its folder, which need not contain the program."""
    stack.require_valid()  # recovery may have to create a node
    stack = stack.with_python(python)
    if program.form == "script" and program.file is not None:
        refuse_notebook(program.file)  # unchecked, too: nothing runs a notebook as a script
    submission = Submission.of(
        stack,
        program.file,
        tuple(arguments),
        cloud=cloud,
        form=program.form,
        program=program.program,
        root=program.folder,
        timeout=timeout,
        secrets=secrets,
    )
    if not check:
        require_all_slices(stack)
        return with_job_python(submission, stack)
    from tpuctl.flows.jobs.check import refuse_errors

    target = program_target(stack, program)
    is_newer = target.has_newer_python_than(sys.version_info[:2])
    check_runnable(program, submission.installation, is_newer_python=is_newer)
    # Machines of the local cloud are processes on this computer.
    is_google = cloud == "google"
    architecture = host_architecture(stack.accelerator) if is_google else platform.machine()
    check_wheels(program.folder, submission.installation, architecture)
    report = refuse_errors(stack, program, emit)
    if report.framework is not None and program.file is not None:
        stack = stack.for_framework(FrameworkChoice(report.framework, program.file.name))
    require_all_slices(stack)
    if stack.has_fixed_runtime:
        _warn_of_runtime(stack, submission, emit)
    submission = replace(submission, framework=stack.framework, workers=stack.job_workers())
    return with_job_python(submission, stack)


async def start(
    context: Context, submission: Submission, waits: Decision = refuse_to_wait
) -> JobRecord:
    """Upload a submission and start it on the workers; for `waits`, see `run`."""
    async with kept_connections(context) as connected:
        await require_free_chips(connected, submission, waits)
        return await _start(connected, submission)


async def _start(context: Context, submission: Submission, *, is_first: bool = True) -> JobRecord:
    """Start it whatever else runs. Emits advice, if it `is_first` of its sweep."""
    stack, cloud, emit = context.stack, context.cloud, context.emit
    with step(emit, "job/stack", "find") as progress:
        check_setup(submission.installation, are_isolated=cloud.endpoint.runs_startup_scripts)
        nodes = await ordered_nodes(context)
        stack = stack_on(nodes[0], stack)
        _require_type(stack, nodes[0])
        if is_first and (note := other_folder_note(stack, context.jobs_cloud)) is not None:
            emit(note)
        stack = stack.for_framework(submission.framework).on_runtime(nodes[0].runtime)
        submission = submission.on(stack)
        if cloud.endpoint.is_local:
            await in_thread(_require_installable_on_image, submission, stack)
        submission = await bind_to_nodes(submission, stack, cloud, nodes)
        where = f"{nodes[0].accelerator_type} in {nodes[0].zone}"
        progress.result = where + _framework(submission) + _python(submission)
    if is_first and not stack.has_fixed_runtime:
        _warn_of_runtime(stack, submission, emit)
    installation = await ensure_tools(
        submission.installation,
        context.store,
        emit,
        workers_have_internet=stack.has_internet,
        may_download=context.may_download,
    )
    submission = replace(submission, installation=installation)
    async with connections(context) as transports:
        job_transports = {worker: transports[worker] for worker in submission.workers}
        record = await submit(submission, context.store, job_transports, emit)
    if is_first and (warning := cloud.server_clock.warning) is not None:
        emit(WarningIssued(warning))
    if record.kind == "notebook":
        return record
    has_file = stack.path.is_file()
    can_be_rehearsed = has_file and not submission.additions and context.controller is None
    content = content_of(stack, record.bundle, record.script)
    is_untried = is_first and can_be_rehearsed and not rehearsed_before(stack, record)
    if is_untried and is_new_advice("rehearse", stack, content):
        emit(Note(f"{NOT_REHEARSED}\n    tpuctl rehearse {_command_line(submission)}"))
    is_watched = await hand_over(stack, cloud, record, context.keys, emit)
    is_unattended = is_first and not is_watched and stack.is_spot and record.retries.preemption
    if has_file and is_unattended and is_new_advice("recovery", stack, content):
        emit(Note(NOT_RECOVERED))
    return record


def _require_type(stack: Stack, node: NodeStatus) -> None:
    """Raise Conflict if the TPU that is up is of another type than the stack file's."""
    actual, desired = accelerator_type(node.accelerator_type), stack.accelerator
    if actual is None or actual == desired:
        return
    raise Conflict(
        "TPU is of another type",
        f"node {node.name} is {actual.name}; the stack file now has {desired.name}",
        hint="Recreate the TPU:\n    tpuctl down\n    tpuctl up\n"
        f"Or, to run on the one that is up, set\n    tpu: {{type: {actual.name}}}",
        where="tpu.type",
    )


def _framework(submission: Submission) -> str:
    """Which framework the job uses, if it is not the default, and on how many workers."""
    if is_tensorflow(submission.framework):
        return ""
    count = len(submission.workers)
    return f", {submission.framework}" + (f" on {count} workers" if count > 1 else "")


def _require_installable_on_image(submission: Submission, stack: Stack) -> None:
    """Raise Refused if only the local cloud's machines could install the job's packages, since
    this computer lacks the Python of their image."""
    machine = machine_python(stack.runtime)
    if machine is None or not submission.installation.has_packages:
        return
    script = submission.script if submission.kind == "script" else None
    folder = submission.root or (script.parent if script is not None else Path())
    require_installable_on_image(
        stack.image_python, machine, submission.installation, folder, script
    )


def _python(submission: Submission) -> str:
    """Which Python the job brings, if it does, and what asks for it."""
    return f", {submission.python}" if submission.python.build is not None else ""


def _warn_of_runtime(stack: Stack, submission: Submission, emit: Emit) -> None:
    """Emit a warning if the runtime is for a framework other than the script's."""
    if submission.kind == "script" and submission.script is not None:
        warning = runtime_warning(stack, submission.script)
        if warning is not None:
            emit(WarningIssued(warning))


def _command_line(submission: Submission) -> str:
    script = as_argument(str(submission.script))
    words = ["-m", submission.program] if submission.kind == "module" else [script]
    return shlex.join([*words, *(["--", *submission.args] if submission.args else [])])


async def wait_until_running(context: Context, record: JobRecord) -> int | None:
    """Wait until the job runs on all its workers. If it fails on one, emit that worker's log and
    the error, and return the exit code."""
    async with connections(context) as transports:
        job_transports = {worker: transports[worker] for worker in record.workers}
        records = await begin(record, job_transports, until_running=True)
        failed = [worker.worker for worker in records.values() if worker.has_failed]
        if not failed:
            return None
        result = await follow_attempt(
            record, context.store, job_transports, context.emit, shown_workers=failed[:1]
        )
        return report_result(result, context.emit)
