"""`run`: a script on a stack's workers, from the check to the end; up first and down afterwards."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from tpuctl.engine.step import step
from tpuctl.errors import Conflict
from tpuctl.flows.check import refuse_errors
from tpuctl.flows.context import Context
from tpuctl.flows.down import down as take_down
from tpuctl.flows.follow import follow
from tpuctl.flows.handover import hand_over
from tpuctl.flows.plan import plan
from tpuctl.flows.recover import follow_to_the_end
from tpuctl.flows.rehearsals import rehearsed_before
from tpuctl.flows.submission import Submission, placed
from tpuctl.flows.submit import submit
from tpuctl.flows.up import up as bring_up
from tpuctl.flows.workers import connections, nodes_of
from tpuctl.jobs.beginning import begin
from tpuctl.model.events import Emit, Note
from tpuctl.model.job import Form, JobRecord, as_argument
from tpuctl.model.stack import Stack
from tpuctl.preflight.command import check_runnable, check_setup, runnable

__all__ = ["prepare", "start", "wait_until_running"]

NOT_REHEARSED = "Not rehearsed as it is. What would fail on a TPU is found on this machine with"
UNWATCHED = (
    "When its node is taken away the job goes on at your next `tpuctl wait` or `tpuctl logs -f`, "
    "on any machine: nobody else watches over it. With controller: {} in the stack file it goes "
    "on by itself."
)


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


async def run(
    context: Context, submission: Submission, *, up: bool = False, down: bool = False
) -> int:
    """Submit and follow to the end; the job's exit code.

    With `up` the stack is brought up first; with `down` it is taken down afterwards, whatever
    happened. Raises Conflict when the job succeeded and something that costs money is left.
    """
    prepared = await plan(context) if up else None
    try:
        if prepared is not None:
            await bring_up(context, prepared=prepared)
        exit_code = await follow_to_the_end(context, await start(context, submission))
    except BaseException:
        if down:
            await take_down(context)
        raise
    leaks = (await take_down(context)).leaks if down else ()
    if leaks and not exit_code:
        raise Conflict(
            "Still charged",
            ", ".join(one.address for one in leaks),
            hint="Take it away with\n    tpuctl down",
        )
    return exit_code
