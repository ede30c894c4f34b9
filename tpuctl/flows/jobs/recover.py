"""Follow a job through its attempts: when one fails, decide whether to retry and start the next.

All state is in the bucket, so any machine can continue where another was interrupted, and of
several that do so at the same time exactly one starts each attempt.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from tpuctl.cloud.caller_identity import acting_user
from tpuctl.cloud.objects import ObjectStore
from tpuctl.engine.planner import observe, plan_down
from tpuctl.errors import Conflict, NoCapacity, NotFound, TpuctlError, Unreachable
from tpuctl.flows.context import Context
from tpuctl.flows.jobs.attempt_outcome import find_failure, inspect_machines
from tpuctl.flows.jobs.attempts import (
    claim_attempt,
    is_stop_requested,
    read_attempts,
    record_verdict,
    with_start,
)
from tpuctl.flows.jobs.follow import AttemptResult, follow_attempt, report_result
from tpuctl.flows.jobs.job_start import record_not_started, start_attempt
from tpuctl.flows.jobs.jobs import mark_stopped, read_status, require_own
from tpuctl.flows.jobs.logs import filter_lines, start_offsets
from tpuctl.flows.jobs.submission import Submission, bind_to_nodes, stack_of
from tpuctl.flows.machines.inventory import stack_on
from tpuctl.flows.machines.local_liveness import run_while_alive
from tpuctl.flows.machines.notify import ring_end, send_unsent
from tpuctl.flows.machines.workers import connections, ordered_nodes
from tpuctl.flows.packages.tools import ensure_tools
from tpuctl.flows.stack.activity import read_activity
from tpuctl.flows.stack.apply import apply_plan
from tpuctl.flows.stack.plan import Prepared, plan
from tpuctl.flows.stack.up import up
from tpuctl.jobs import launch
from tpuctl.jobs.logs import GIVE_UP_SECONDS, worker_records
from tpuctl.model.events import Emit, Note, WarningIssued
from tpuctl.model.jobs.attempt import Attempt, Retry, Verdict, retries_left
from tpuctl.model.jobs.failures import Failure
from tpuctl.model.jobs.job import EXIT_LOST, EXIT_TIMED_OUT, JobRecord, JobStatus
from tpuctl.model.logs.log_range import WHOLE_LOG, LogRange
from tpuctl.model.plan import Action
from tpuctl.polling import Backoff, wait_until
from tpuctl.remote.transport import Transport
from tpuctl.resources.composition import kind_of

RETRY_BACKOFF = Backoff(
    initial=5.0, maximum=300.0, multiplier=4.0
)  # before a retry after an infrastructure failure
UNREACHABLE_SECONDS = GIVE_UP_SECONDS  # before machines are followed through the bucket
START_SECONDS = 120.0  # for a claimed attempt to start; after that it never will
NODE_POLL_SECONDS = 30.0  # between polls of a TPU node: no machine reports its end
GONE_STATES = ("", "PREEMPTED", "TERMINATED", "DELETING", "STOPPED", "STOPPING", "SUSPENDED")
MAX_RECONNECTS = 20  # without news of the job in between
CAPACITY_SECONDS = 6 * 3600.0  # retry creating a node for this long without capacity
CAPACITY_BACKOFF = Backoff(initial=30.0, maximum=600.0, multiplier=1.6)
QUEUE_BACKOFF = Backoff(initial=1.0, maximum=10.0)  # between looks at a job that waits
MAINTENANCE_SECONDS = 2 * 3600.0  # the longest wait for maintenance to end
MAINTENANCE_BACKOFF = Backoff(initial=1.0, maximum=30.0, multiplier=1.5)
REPAIR_FAILED = "UNKNOWN"  # "unknown state after a failed repair"


async def follow_to_end(
    context: Context,
    record: JobRecord,
    *,
    all_workers: bool = False,
    show: bool = True,
    part: LogRange = WHOLE_LOG,
) -> int:
    """Emit the job's log from the record's attempt on, through all later attempts.

    Emits the log of the first worker byte for byte, or of all workers line by line with their
    names. The start of `part` applies to the record's attempt, its pattern to all attempts.

    A failed attempt is followed by another within the job's retries, on a recreated stack if
    necessary. The exit code is the last attempt's, or 75 when the preemption retries are used up.
    Cancelling stops neither the job nor pending requests for nodes. A job that waits in the stack's
    queue is followed once the controller has started it. Raises Conflict for a job of another
    stack.
    """
    require_own(context, record)
    if record.is_waiting:
        record, ended = await _wait_for_turn(context, record)
        if ended is not None:
            return report_result(AttemptResult(record, ended, {}, {}), context.emit)
    workers = record.workers if all_workers else record.workers[:1]
    recovery = _Recovery(context, workers, show, part).run(record)
    return await run_while_alive(recovery, context.cloud.endpoint, f"tpuctl wait {record.id}")


async def _wait_for_turn(context: Context, record: JobRecord) -> tuple[JobRecord, JobStatus | None]:
    """Wait until a queued job is started; returns its record then, or how it ended before."""
    context.emit(Note(f"Job {record.id} waits in the queue of stack {record.stack}."))
    activity_text = ""

    async def probe() -> tuple[JobRecord, JobStatus | None] | None:
        nonlocal activity_text
        current = await with_start(context.store, record)
        if not current.is_waiting:
            return current, None
        status = await read_status(context.store, current)
        activity = await read_activity(context.store, record.stack)
        if activity is not None and activity.text != activity_text:
            activity_text = activity.text
            context.emit(Note(activity.sentence(context.cloud.server_clock.now())))
        return None if status.exit_code is None else (current, status)

    return await wait_until(
        probe,
        description=f"job {record.id} being started",
        seconds=math.inf,
        backoff=QUEUE_BACKOFF,
        clock=context.clock,
    )


@dataclass
class _Recovery:
    context: Context
    workers: Sequence[int]
    show: bool
    part: LogRange
    started_here: set[int] = field(default_factory=set)  # attempts started by this process
    reconnects: int = 0

    async def run(self, record: JobRecord) -> int:
        offsets: Mapping[int, int] | None = None  # None: where `part` starts
        stack = self.context.stack
        while True:
            self.context = replace(self.context, stack=stack_of(record, stack))
            result = await self._follow(record, offsets)
            if result.status.state == "succeeded":
                await send_unsent(self.context)
                return report_result(result, self.context.emit)
            try:
                following = await self._next_attempt(result)
            except RecoveryAborted as aborted:
                self.context.emit(Note(f"No further attempt: {aborted}."))
                following = result
            if isinstance(following, AttemptResult):
                if following.status.state == "lost" and await self._was_stopped(following):
                    following = replace(following, status=mark_stopped(following.status))
                return report_result(following, self.context.emit)
            offsets = result.offsets if following.attempt == record.attempt else {}
            record = following

    # One attempt ---------------------------------------------------------------------------

    async def _follow(self, record: JobRecord, offsets: Mapping[int, int] | None) -> AttemptResult:
        context = self.context
        is_claimed = record.attempt > 1 or record.queued is not None
        if is_claimed and record.attempt not in self.started_here:
            await self._wait_for_start(record)

        async def is_gone() -> bool:
            return (
                await inspect_machines(context.stack, context.cloud, record)
            ).state in GONE_STATES

        async with connections(context, required=False) as transports:
            job_transports = {
                worker: transports[worker] for worker in record.workers if worker in transports
            }
            watcher = asyncio.ensure_future(self._watch_node(record, job_transports))
            try:
                if offsets is None:
                    offsets = await start_offsets(
                        self.part, record, self.workers, context.store, job_transports
                    )
                with filter_lines(context.emit, self.workers, self.part, record.numbering) as emit:
                    return await follow_attempt(
                        record,
                        context.store,
                        job_transports,
                        emit,
                        from_offsets=offsets,
                        shown_workers=self.workers if self.show else (),
                        is_gone=is_gone,
                        timeout=UNREACHABLE_SECONDS,
                    )
            finally:
                watcher.cancel()
                with suppress(asyncio.CancelledError):
                    await watcher

    async def _wait_for_start(self, record: JobRecord) -> None:
        """Wait for another client's attempt to start; mark it as not started after a timeout."""
        store = self.context.store

        async def probe() -> bool | None:
            return bool(await worker_records(store, record)) or None

        try:
            await wait_until(
                probe,
                description=f"attempt {record.attempt} beginning",
                seconds=START_SECONDS,
                backoff=Backoff(0.2, 5.0),
                clock=self.context.clock,
            )
        except TpuctlError:
            await record_not_started(store, record, "the client that claimed it was interrupted")

    async def _watch_node(self, record: JobRecord, transports: Mapping[int, Transport]) -> None:
        """Stop the job when its TPU node is gone: the script might wait for the node forever.

        Uses the existing connections to the controller, which still answers.
        """
        context = self.context
        if not context.stack.is_node:
            return
        while True:
            await context.clock.sleep(NODE_POLL_SECONDS)
            with suppress(TpuctlError):
                machines = await inspect_machines(context.stack, context.cloud, record)
                if machines.state in ("PREEMPTED", "TERMINATED"):
                    context.emit(
                        Note(f"TPU node is {machines.state}: stopping the job that waits for it.")
                    )
                    if not await launch.stop(record, transports, failed_worker=record.workers[0]):
                        await launch.stop_through_bucket(record, context.store)
                    return

    # Between attempts ----------------------------------------------------------------------

    async def _next_attempt(self, result: AttemptResult) -> JobRecord | AttemptResult:
        """The next attempt to follow, or the job's result if there is none."""
        context, record = self.context, result.record
        if not record.bundle_name:  # no bucket could be reached
            return result
        try:
            attempts = await read_attempts(context.store, record)
            left = retries_left(record.retries, attempts)
            decided = await self._decide(result, attempts, left)
        except TpuctlError as error:
            if result.status.state != "failed":
                raise
            context.emit(WarningIssued(error.diagnostics[0]))  # the exit code is known anyway
            return result
        return (
            await self._start_next(record, decided, left)
            if isinstance(decided, Verdict)
            else decided
        )

    async def _decide(
        self, result: AttemptResult, attempts: Sequence[Attempt], left: Mapping[Retry, int]
    ) -> Verdict | JobRecord | AttemptResult:
        """A verdict if another attempt is to be started, otherwise like `_next_attempt`."""
        context, record = self.context, result.record
        for attempt in attempts:
            if attempt.number == record.attempt + 1:
                context.emit(
                    Note(
                        f"{_describe_end(record, attempt.verdict)}\n"
                        f"Following attempt {attempt.number}."
                    )
                )
                return record.of(attempt)
        if await self._was_stopped(result):
            return result
        verdict = await record_verdict(context.store, record, None)
        return verdict or await self._judge(result, left)

    async def _was_stopped(self, result: AttemptResult) -> bool:
        return bool(result.record.bundle_name) and await is_stop_requested(
            self.context.store, result.record
        )

    async def _judge(
        self, result: AttemptResult, left: Mapping[Retry, int]
    ) -> Verdict | JobRecord | AttemptResult:
        context, record = self.context, result.record
        failure = await find_failure(
            context.stack, context.cloud, context.store, record, result.workers, context.emit
        )
        assert failure is not None  # it did not succeed
        has_file = context.has_file  # otherwise the stack's TPU is not known
        if failure.name == "worker-gone" and has_file and await self._is_reachable_again(result):
            return record
        if failure.kind == "ended":
            return _final_result(result, failure)
        if left[failure.kind] == 0:
            await ring_end(context, record, failure)
            return _exhausted_result(result, failure)
        if not has_file:
            raise RecoveryAborted("the stack was named without a stack file, which has its TPU")
        submission_of(
            context, record
        )  # raises what prevents a retry before the verdict is recorded
        verdict = Verdict(
            kind=failure.kind,
            name=failure.name,
            cause=failure.cause,
            hint=failure.hint,
            worker=failure.worker,
            detail=failure.detail,
            at=context.cloud.server_clock.now(),
            by=acting_user(context.cloud),
        )
        decided = await record_verdict(context.store, record, verdict)
        assert decided is not None
        await ring_end(context, record, failure)
        return decided

    async def _start_next(
        self, record: JobRecord, verdict: Verdict, left: Mapping[Retry, int]
    ) -> JobRecord:
        """Start the next attempt, or return the one that another client started first."""
        context = self.context
        submission = submission_of(context, record)
        after = {kind: count - (kind == verdict.kind) for kind, count in left.items()}
        context.emit(
            Note(
                f"{_describe_end(record, verdict)}\nStarting attempt {record.attempt + 1}; "
                f"retries left: {', '.join(f'{kind} {count}' for kind, count in after.items())}."
            )
        )
        try:
            if verdict.kind == "infrastructure":
                await self._back_off(record.retries.infrastructure - left["infrastructure"])
            # A queue outlives everything but its limits.
            await restore_stack(context, record, math.inf if record.queued else CAPACITY_SECONDS)
            following, was_started_here = await start_next_attempt(
                context, record, submission, verdict
            )
        except asyncio.CancelledError:
            context.emit(
                Note(
                    f"Job {record.id} is not running: attempt {record.attempt + 1} was not "
                    "started. Pending requests for nodes continue. To resume, here or on another "
                    f"machine, run\n    tpuctl wait {record.id}"
                )
            )
            raise
        if was_started_here:
            self.started_here.add(following.attempt)
        return following

    async def _back_off(self, before: int) -> None:
        """Wait before a retry, longer each time."""
        for number, seconds in enumerate(RETRY_BACKOFF.delays()):
            if number >= before:
                self.context.emit(Note(f"Retrying in {seconds:.0f} s."))
                await self.context.clock.sleep(seconds)
                return

    async def _is_reachable_again(self, ending: AttemptResult) -> bool:
        """Whether machines that stopped answering are reachable again and still have the attempt.

        Runs `up` first, which allows this machine's current address in the firewall.
        """
        context, record = self.context, ending.record
        # A worker that its own supervisor reported as lost is reachable already.
        silent = [
            worker
            for worker in ending.workers.values()
            if worker.state == "lost" and not worker.log_uploaded
        ]
        lost = [worker.worker for worker in silent]
        machines = await inspect_machines(context.stack, context.cloud, record)
        if not lost or machines.state != "READY" or self.reconnects >= MAX_RECONNECTS:
            return False
        context.emit(Note("Node is READY: reconnecting to the workers."))
        try:
            await up(context)
            async with connections(context, required=True) as transports:
                results = await asyncio.gather(
                    *(
                        transports[worker].run(launch.supervisor_command(record, "status"))
                        for worker in lost
                        if worker in transports
                    )
                )
        except TpuctlError:
            return False
        self.reconnects += 1
        return len(results) == len(lost) and all(result.exit_code == 0 for result in results)


def _describe_end(record: JobRecord, verdict: Verdict) -> str:
    where = (
        f" (worker {record.worker_name(verdict.worker)})"
        if verdict.worker is not None and len(record.workers) > 1
        else ""
    )
    output = f"\n    {verdict.detail}" if verdict.detail else ""
    return f"Attempt {record.attempt} ended{where}: {verdict.cause}{output}"


def _final_result(result: AttemptResult, failure: Failure) -> AttemptResult:
    """The result of a job that was stopped, or ended by a limit."""
    status = result.status
    if failure.name == "limit":
        status = replace(status, state="timed_out", exit_code=EXIT_TIMED_OUT)
    detail = failure.cause if status.state in ("lost", "timed_out") else status.detail
    return replace(result, status=replace(status, detail=detail))


def _exhausted_result(result: AttemptResult, failure: Failure) -> AttemptResult:
    """The result once retries are used up; the exit code tells whether trying later may help."""
    retries, status = result.record.retries, result.status
    detail = failure.cause + (f"\n    {failure.detail}" if failure.detail else "")
    if failure.kind == "preemption":
        detail += f"\nNo retries left (job.retries.preemption: {retries.preemption})"
        final = replace(status, state="lost", exit_code=NoCapacity.exit_code, detail=detail)
        return replace(result, status=final)
    if failure.kind == "infrastructure":
        detail += f"\nNo retries left (job.retries.infrastructure: {retries.infrastructure})"
        return replace(result, status=replace(status, exit_code=EXIT_LOST, detail=detail))
    if failure.kind == "requested":  # the exit code is the script's
        detail += f"\nNo retries left (job.retries.requested: {retries.requested})"
        return replace(result, status=replace(status, detail=detail))
    return result


MAX_CONFLICTS, CONFLICT_POLL_SECONDS = 300, 2.0  # polls while another client replaces the node


class RecoveryAborted(Exception):
    """No further attempt: the job was stopped, or its stack taken down."""


def submission_of(context: Context, record: JobRecord) -> Submission:
    """The submission for the next attempt. Raises TpuctlError if it cannot be started."""
    if not record.bundle_name:
        raise NotFound(
            "Bundle not found",
            f"job {record.id} was uploaded over SSH and lost with its machines",
            hint=f"Submit it again:\n    {record.command_line}",
        )
    return Submission.for_retry(record, context.stack, cloud=context.jobs_cloud)


async def restore_stack(
    context: Context, record: JobRecord, seconds: float = CAPACITY_SECONDS
) -> None:
    """Get the stack's machines ready for jobs, recreating those that are gone.

    Without capacity the request is retried for `seconds`, or until the stack's deadline. Raises
    RecoveryAborted if the job is stopped or the stack taken down.
    """
    clock, now = context.clock, context.cloud.server_clock.now()
    context = replace(context, stack=context.stack.bounded(now))
    if (until := context.stack.deadline) is not None:
        seconds = min(seconds, max(0.0, (until - now).total_seconds()))
    deadline = clock.now() + seconds
    delays = CAPACITY_BACKOFF.delays()
    is_reported = False
    conflicts = 0
    await _wait_for_maintenance(context, record)
    for tries in itertools.count():
        await _require_not_aborted(context, record)
        try:
            await _bring_up(context, record, is_first=tries == 0)
            return
        except Conflict:
            conflicts += 1
            if conflicts > MAX_CONFLICTS or not await _is_being_replaced(context, record):
                raise
            await clock.sleep(CONFLICT_POLL_SECONDS)
        except NoCapacity as error:
            left = deadline - clock.now()
            if left <= 0:
                raise NoCapacity(
                    "No capacity",
                    f"job {record.id} is waiting for a node: no capacity for "
                    f"{seconds / 3600:.3g} hours. {error.diagnostics[0].detail}",
                    hint=f"Try again later:\n    tpuctl wait {record.id}",
                ) from error
            delay = min(next(delays), left)
            if not is_reported:
                is_reported = True
                limit = ""
                if left != math.inf:
                    end = datetime.now(UTC) + timedelta(seconds=left)
                    limit = f" until {end:%Y-%m-%d %H:%M} UTC"
                summary = error.diagnostics[0].summary
                context.emit(Note(f"{summary}: retrying{limit}, next in {delay:.0f} s"))
            await clock.sleep(delay)


async def _is_being_replaced(context: Context, record: JobRecord) -> bool:
    """Whether another client that recovers the job is replacing the node."""
    machines = await inspect_machines(context.stack, context.cloud, record)
    return machines.state in ("DELETING", "") or machines.is_replaced


async def _bring_up(context: Context, record: JobRecord, *, is_first: bool) -> None:
    """Run `up`; replace machines that are READY but unreachable and not running the job."""
    prepared = await plan(context)
    if is_first and context.stack.slices > 1:
        for change in prepared.plan.changes:
            if change.action is Action.CREATE and kind_of(change.address).is_tpu:
                context.emit(Note(f"{change.address}: {change.because}."))
    before = await _log_generations(context, record)
    try:
        await up(context, prepared=prepared)
        return
    except Unreachable:
        machines = await inspect_machines(context.stack, context.cloud, record)
        if machines.state != "READY" or machines.is_replaced:
            raise
        if await _log_generations(context, record) != before:
            raise Unreachable(
                "Worker not reachable from here",
                f"job {record.id} is running: its log in gs://{record.bucket} is growing",
                hint="Check that this network allows outgoing SSH, then run\n    "
                f"tpuctl logs -f {record.id}",
            ) from None
    context.emit(Note(f"Node {record.node} is READY but not reachable: recreating it."))
    await launch.stop_through_bucket(record, context.store)
    await remove_nodes(await plan(context), context.emit)
    await up(context)


async def _log_generations(context: Context, record: JobRecord) -> dict[str, int]:
    """The generations of the attempt's logs and records; they change while it runs."""
    objects = await context.store.list(f"{record.attempt_prefix}/worker-")
    return {info.name: info.generation for info in objects}


async def remove_nodes(prepared: Prepared, emit: Emit) -> None:
    """Delete the nodes of a plan, or the request for them."""
    tpus = [resource for resource in prepared.resources if kind_of(resource.address).is_tpu]
    plan = plan_down(tpus, await observe(tpus))
    if not plan.is_empty:
        await apply_plan(plan, tpus, emit)


async def _wait_for_maintenance(context: Context, record: JobRecord) -> None:
    """Wait for the end of maintenance; delete a node whose repair has failed."""
    is_reported = False

    async def probe() -> str | None:
        nonlocal is_reported
        machines = await inspect_machines(context.stack, context.cloud, record)
        if "MAINTENANCE" not in machines.health:
            return machines.state
        if not is_reported:
            is_reported = True
            context.emit(Note(f"Node {record.node} is in maintenance: waiting for it to end."))
        await _require_not_aborted(context, record)
        return None

    state = await wait_until(
        probe,
        description=f"the end of maintenance of node {record.node}",
        seconds=MAINTENANCE_SECONDS,
        backoff=MAINTENANCE_BACKOFF,
        clock=context.clock,
    )
    if state == REPAIR_FAILED:
        await remove_nodes(await plan(context), context.emit)


async def _require_not_aborted(context: Context, record: JobRecord) -> None:
    if await is_stop_requested(context.store, record):
        raise RecoveryAborted("the job was stopped")
    if (await inspect_machines(context.stack, context.cloud, record)).was_deleted_by_down:
        raise RecoveryAborted("the stack was taken down")


async def start_next_attempt(
    context: Context, record: JobRecord, submission: Submission, verdict: Verdict
) -> tuple[JobRecord, bool]:
    """Start the attempt after the record's; return it and whether it was started here.

    The client that claims the attempt starts it; if another client has claimed it, its attempt is
    returned.
    """
    async with connections(context, required=True) as transports:
        nodes = await ordered_nodes(context)
        stack = stack_on(nodes[0], context.stack)
        submission = await bind_to_nodes(submission, stack, context.cloud, nodes)
        placement = submission.machines.placement
        assert placement is not None
        job_transports = {worker: transports[worker] for worker in record.workers}
        before = set(record.placement.node_ids) if record.placement is not None else set()
        if not before or before & set(placement.node_ids):
            await launch.stop(record, job_transports)  # leftover processes would hold the chips
        attempt = Attempt(
            number=record.attempt + 1,
            placement=placement,
            verdict=verdict,
            started=context.cloud.server_clock.now(),
            started_by=acting_user(context.cloud),
            write_id=secrets.token_hex(8),
        )
        following = record.of(attempt)
        if not await claim_attempt(context.store, record, attempt):
            return await _read_next_attempt(context.store, record), False
        await start_claimed(context, following, submission, job_transports)
        return following, True


async def start_claimed(
    context: Context,
    record: JobRecord,
    submission: Submission,
    transports: Mapping[int, Transport],
) -> None:
    """Start the record's attempt, which this client has claimed; that it fails counts as a failed
    attempt. Raises RecoveryAborted if a stop was requested."""
    if await is_stop_requested(context.store, record):
        await record_not_started(context.store, record, "the job was stopped")
        raise RecoveryAborted("the job was stopped")
    try:
        await ensure_tools(
            record.installation,
            context.store,
            context.emit,
            workers_have_internet=context.stack.has_internet,
            may_download=context.may_download,
        )
        await start_attempt(submission, record, context.store, transports, context.emit)
    except TpuctlError as error:
        context.emit(WarningIssued(error.diagnostics[0]))
    if await is_stop_requested(context.store, record):
        await launch.stop(record, transports)


async def _read_next_attempt(store: ObjectStore, record: JobRecord) -> JobRecord:
    for attempt in await read_attempts(store, record):
        if attempt.number == record.attempt + 1:
            return record.of(attempt)
    raise Conflict(
        "Attempt not found",
        f"attempt {record.attempt + 1} of job {record.id}",
        hint=(
            "The job's record is being deleted. Check the jobs, then submit it again:\n"
            "    tpuctl jobs\n    tpuctl run SCRIPT"
        ),
    )
