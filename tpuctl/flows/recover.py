"""Following a job through its attempts: what ended one is weighed, and another is started.

Everything that has to be known for that is in the bucket, so any machine goes on where another
was interrupted, and of several that go on at the same time one starts each attempt.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from tpuctl.cloud.objects import ObjectStore
from tpuctl.engine.planner import observe, plan_down
from tpuctl.errors import Conflict, NoCapacity, NotFound, TpuctlError, Unreachable
from tpuctl.flows.apply import apply_plan
from tpuctl.flows.attempt_outcome import machines_of, why_ended
from tpuctl.flows.attempts import announce, attempts_of, decide, was_stopped
from tpuctl.flows.context import Context
from tpuctl.flows.follow import Ending, follow_attempt, tell_ending
from tpuctl.flows.jobs import as_stopped
from tpuctl.flows.local_liveness import unless_gone
from tpuctl.flows.log_output import first_bytes, lines_of
from tpuctl.flows.plan import Prepared, plan
from tpuctl.flows.submission import Submission, own_name, placed
from tpuctl.flows.submit import start_attempt, tell_not_started
from tpuctl.flows.up import up
from tpuctl.flows.workers import connections, nodes_of
from tpuctl.jobs import launch
from tpuctl.jobs.logs import GIVE_UP_SECONDS, worker_records
from tpuctl.model.attempt import Attempt, Retry, Verdict, retries_left
from tpuctl.model.events import Emit, Note, Warned
from tpuctl.model.failures import Failure
from tpuctl.model.job import EXIT_LOST, EXIT_TIMED_OUT, JobRecord
from tpuctl.model.log_range import WHOLE, LogPart
from tpuctl.polling import Backoff, wait_until
from tpuctl.remote.transport import Transport
from tpuctl.resources.composition import kind_of

__all__ = [
    "RecoveryAborted",
    "bring_back",
    "follow_to_the_end",
    "remove_nodes",
    "start_next",
    "submission_of",
]

PAUSE = Backoff(first=5.0, most=300.0, factor=4.0)  # before another try of what is broken
PATIENCE = GIVE_UP_SECONDS  # with machines that do not answer
BEGIN_SECONDS = 120.0  # after which an attempt that was announced has begun, or never will
REMOTE_SECONDS = 30.0  # between looks at a TPU node, whose end no machine tells
GONE = ("", "PREEMPTED", "TERMINATED", "DELETING", "STOPPED", "STOPPING", "SUSPENDED")
REUNIONS = 20  # how often machines are found again without a word of the job in between
CAPACITY_SECONDS = 6 * 3600.0  # for so long a node is asked for again where there is none
CAPACITY = Backoff(first=30.0, most=600.0, factor=1.6)
MENDING_SECONDS = 2 * 3600.0  # of maintenance
MENDING = Backoff(first=1.0, most=30.0, factor=1.5)
BEYOND_REPAIR = "UNKNOWN"  # "unknown state after a failed repair"


async def follow_to_the_end(
    context: Context,
    record: JobRecord,
    *,
    all_workers: bool = False,
    show: bool = True,
    part: LogPart = WHOLE,
) -> int:
    """Emit the job's log from the record's attempt on, and of all that follow it.

    The log of the first worker byte for byte, or of all, line by line with their names; of the
    record's attempt, where the part begins, and of all, only the lines that it wants.

    An attempt that ended other than well is followed by another while the job's retries allow, on
    a stack brought up anew if need be. The exit code is the last attempt's; 75 when the budget of
    preemptions is spent. Cancelling leaves the job, and what the cloud was asked for, alone.
    """
    workers = record.workers if all_workers else record.workers[:1]
    following = _Story(context, workers, show, part).tell(record)
    return await unless_gone(following, context.cloud.endpoint, f"tpuctl wait {record.id}")


class _Story:
    def __init__(self, context: Context, workers: Sequence[int], show: bool, part: LogPart) -> None:
        self.context = context
        self.workers = workers
        self.show = show
        self.part = part
        self.own: set[int] = set()  # the attempts that were started here
        self.reunions = 0

    async def tell(self, record: JobRecord) -> int:
        offsets: Mapping[int, int] | None = None  # where the part begins
        while True:
            ending = await self._follow(record, offsets)
            if ending.status.state == "succeeded":
                return tell_ending(ending, self.context.emit)
            try:
                following = await self._after(ending)
            except RecoveryAborted as aborted:
                self.context.emit(Note(f"No further attempt: {aborted}."))
                following = ending
            if isinstance(following, Ending):
                if following.status.state == "lost" and await self._was_stopped(following):
                    following = replace(following, status=as_stopped(following.status))
                return tell_ending(following, self.context.emit)
            offsets = ending.offsets if following.attempt == record.attempt else {}
            record = following

    # One attempt ---------------------------------------------------------------------------

    async def _follow(self, record: JobRecord, offsets: Mapping[int, int] | None) -> Ending:
        context = self.context
        if record.attempt > 1 and record.attempt not in self.own:
            await self._until_begun(record)

        async def is_gone() -> bool:
            return (await machines_of(context.stack, context.cloud, record)).state in GONE

        async with connections(context, required=False) as transports:
            mine = {one: transports[one] for one in record.workers if one in transports}
            watching = asyncio.ensure_future(self._watch_node(record, mine))
            try:
                if offsets is None:
                    offsets = await first_bytes(
                        self.part, record, self.workers, context.store, mine
                    )
                with lines_of(context.emit, self.workers, self.part) as emit:
                    return await follow_attempt(
                        record,
                        context.store,
                        mine,
                        emit,
                        from_offsets=offsets,
                        shown=self.workers if self.show else (),
                        is_gone=is_gone,
                        patience=PATIENCE,
                    )
            finally:
                watching.cancel()
                with suppress(asyncio.CancelledError):
                    await watching

    async def _until_begun(self, record: JobRecord) -> None:
        """Wait for an attempt of somebody else's; one that was left before it began is ended."""
        store = self.context.store

        async def probe() -> bool | None:
            return bool(await worker_records(store, record)) or None

        try:
            await wait_until(
                probe,
                what=f"attempt {record.attempt} beginning",
                seconds=BEGIN_SECONDS,
                backoff=Backoff(0.2, 5.0),
                clock=self.context.clock,
            )
        except TpuctlError:
            await tell_not_started(store, record, "whoever announced it was interrupted")

    async def _watch_node(self, record: JobRecord, mine: Mapping[int, Transport]) -> None:
        """End what waits for a TPU node that is gone: its script may do so for ever.

        Through the connections there are: the controller answers still, as no node does.
        """
        context = self.context
        if not context.stack.is_node:
            return
        while True:
            await context.clock.sleep(REMOTE_SECONDS)
            with suppress(TpuctlError):
                machines = await machines_of(context.stack, context.cloud, record)
                if machines.state in ("PREEMPTED", "TERMINATED"):
                    context.emit(
                        Note(f"The TPU node is {machines.state}: ending what waits for it.")
                    )
                    if not await launch.stop(record, mine, because_of=record.workers[0]):
                        await launch.stop_through_bucket(record, context.store)
                    return

    # Between attempts ----------------------------------------------------------------------

    async def _after(self, ending: Ending) -> JobRecord | Ending:
        """The attempt to follow now, or how the job ended where there will be none."""
        context, record = self.context, ending.record
        if not record.bundle_name:  # no bucket could be reached
            return ending
        try:
            attempts = await attempts_of(context.store, record)
            left = retries_left(record.retries, attempts)
            decided = await self._decide(ending, attempts, left)
        except TpuctlError as error:
            if ending.status.state != "failed":
                raise
            context.emit(Warned(error.diagnostics[0]))  # its own exit code is known all the same
            return ending
        return await self._again(record, decided, left) if isinstance(decided, Verdict) else decided

    async def _decide(
        self, ending: Ending, attempts: Sequence[Attempt], left: Mapping[Retry, int]
    ) -> Verdict | JobRecord | Ending:
        """Why another attempt is to be started; else as `_after`."""
        context, record = self.context, ending.record
        for attempt in attempts:
            if attempt.number == record.attempt + 1:
                context.emit(
                    Note(f"{_why(record, attempt.why)}\nAttempt {attempt.number} follows.")
                )
                return record.of(attempt)
        if await self._was_stopped(ending):
            return ending
        verdict = await decide(context.store, record, None)
        return verdict or await self._weigh(ending, left)

    async def _was_stopped(self, ending: Ending) -> bool:
        return bool(ending.record.bundle_name) and await was_stopped(
            self.context.store, ending.record
        )

    async def _weigh(
        self, ending: Ending, left: Mapping[Retry, int]
    ) -> Verdict | JobRecord | Ending:
        context, record = self.context, ending.record
        failure = await why_ended(
            context.stack, context.cloud, context.store, record, ending.workers, context.emit
        )
        assert failure is not None  # it did not succeed
        if failure.name == "worker-gone" and await self._is_found_again(ending):
            return record
        if failure.kind == "ended":
            return _ended(ending, failure)
        if left[failure.kind] == 0:
            return _spent(ending, failure)
        submission_of(context, record)  # raises what is in the way, before anything is decided
        verdict = Verdict(
            kind=failure.kind,
            name=failure.name,
            cause=failure.cause,
            hint=failure.hint,
            worker=failure.worker,
            detail=failure.detail,
            at=datetime.now(UTC),
            by=own_name(),
        )
        decided = await decide(context.store, record, verdict)
        assert decided is not None
        return decided

    async def _again(self, record: JobRecord, why: Verdict, left: Mapping[Retry, int]) -> JobRecord:
        """The next attempt, started here or by somebody quicker."""
        context = self.context
        wanted = submission_of(context, record)
        after = {kind: count - (kind == why.kind) for kind, count in left.items()}
        context.emit(
            Note(
                f"{_why(record, why)}\nAttempt {record.attempt + 1} follows; left then of "
                f"job.retries: {', '.join(f'{kind} {count}' for kind, count in after.items())}."
            )
        )
        try:
            if why.kind == "infrastructure":
                await self._pause(record.retries.infrastructure - left["infrastructure"])
            await bring_back(context, record)
            following, is_own = await start_next(context, record, wanted, why)
        except asyncio.CancelledError:
            context.emit(
                Note(
                    f"Job {record.id} does not run now: it waits for its attempt "
                    f"{record.attempt + 1}. The cloud goes on with what it was asked for. Go on, "
                    f"here or on another machine, with\n    tpuctl wait {record.id}"
                )
            )
            raise
        if is_own:
            self.own.add(following.attempt)
        return following

    async def _pause(self, before: int) -> None:
        """Longer with each try: what is broken may need a while."""
        for number, seconds in enumerate(PAUSE.delays()):
            if number >= before:
                self.context.emit(Note(f"Trying again in {seconds:.0f} s."))
                await self.context.clock.sleep(seconds)
                return

    async def _is_found_again(self, ending: Ending) -> bool:
        """Whether the machines that fell silent answer again, and the attempt is still there.

        This machine's address may have changed: `up` lets the new one in.
        """
        context, record = self.context, ending.record
        # One whose own supervisor calls it lost has answered: there is nothing to find again.
        silent = [one for one in ending.workers.values() if one.state == "lost" and not one.synced]
        lost = [one.worker for one in silent]
        machines = await machines_of(context.stack, context.cloud, record)
        if not lost or machines.state != "READY" or self.reunions >= REUNIONS:
            return False
        context.emit(Note("Its node is READY: trying to reach the workers again."))
        try:
            await up(context)
            async with connections(context, required=True) as transports:
                asked = await asyncio.gather(
                    *(
                        transports[one].run(launch.command(record, "status"))
                        for one in lost
                        if one in transports
                    )
                )
        except TpuctlError:
            return False
        self.reunions += 1
        return len(asked) == len(lost) and all(one.exit_code == 0 for one in asked)


def _why(record: JobRecord, why: Verdict) -> str:
    where = f" (worker {why.worker})" if why.worker is not None and len(record.workers) > 1 else ""
    said = f"\n    {why.detail}" if why.detail else ""
    return f"Attempt {record.attempt} ended{where}: {why.cause}{said}"


def _ended(ending: Ending, failure: Failure) -> Ending:
    """What somebody or a limit wanted is how the job ended."""
    status = ending.status
    if failure.name == "limit":
        status = replace(status, state="timed_out", exit_code=EXIT_TIMED_OUT)
    detail = failure.cause if status.state in ("lost", "timed_out") else status.detail
    return replace(ending, status=replace(status, detail=detail))


def _spent(ending: Ending, failure: Failure) -> Ending:
    """The exit code says what to do: later may be better, or nothing helps but looking."""
    retries, status = ending.record.retries, ending.status
    detail = failure.cause + (f"\n    {failure.detail}" if failure.detail else "")
    if failure.kind == "preemption":
        detail += f"\nAll {retries.preemption} of job.retries.preemption were used"
        spent = replace(status, state="lost", exit_code=NoCapacity.exit_code, detail=detail)
        return replace(ending, status=spent)
    if failure.kind == "infrastructure":
        detail += f"\nAll {retries.infrastructure} of job.retries.infrastructure were used"
        return replace(ending, status=replace(status, exit_code=EXIT_LOST, detail=detail))
    return ending


ENCOUNTERS, ENCOUNTER_SECONDS = 300, 2.0  # looks at a node that somebody else replaces


class RecoveryAborted(Exception):
    """Somebody wants no further attempt: the job was stopped, or its stack taken down."""


def submission_of(context: Context, record: JobRecord) -> Submission:
    """What the next attempt is started with. Raises what is in its way, before anything is done."""
    if not record.bundle_name:
        raise NotFound(
            "Bundle is not in the bucket",
            f"job {record.id} was sent over SSH, and went with its machines",
            hint="Submit it anew with\n    tpuctl run",
        )
    return Submission.again(record, context.stack, cloud=context.jobs_cloud)


async def bring_back(context: Context, record: JobRecord) -> None:
    """See that the stack's machines are ready for jobs, made anew where they are gone.

    Where there is no capacity it is asked for again, for a while. Raises RecoveryAborted
    when the job was stopped or the stack taken down meanwhile.
    """
    clock = context.clock
    until = clock.now() + CAPACITY_SECONDS
    delays = CAPACITY.delays()
    is_told = False
    encounters = 0
    await _until_mended(context, record)
    while True:
        await _require_wanted(context, record)
        try:
            await _bring_up(context, record)
            return
        except Conflict:
            encounters += 1
            if encounters > ENCOUNTERS or not await _is_being_replaced(context, record):
                raise
            await clock.sleep(ENCOUNTER_SECONDS)
        except NoCapacity as error:
            left = until - clock.now()
            if left <= 0:
                raise NoCapacity(
                    "No capacity",
                    f"job {record.id} waits for a node: asked for "
                    f"{CAPACITY_SECONDS / 3600:g} hours. {error.diagnostics[0].detail}",
                    hint=f"Go on whenever there may be some with\n    tpuctl wait {record.id}",
                ) from error
            delay = min(next(delays), left)
            if not is_told:
                is_told = True
                end = datetime.now(UTC) + timedelta(seconds=left)
                context.emit(
                    Note(
                        f"{error.diagnostics[0].summary}: asking again until "
                        f"{end:%Y-%m-%d %H:%M} UTC, next in {delay:.0f} s"
                    )
                )
            await clock.sleep(delay)


async def _is_being_replaced(context: Context, record: JobRecord) -> bool:
    """Whether somebody else who recovers the job is at it, and the node is in between for now."""
    machines = await machines_of(context.stack, context.cloud, record)
    return machines.state in ("DELETING", "") or machines.is_another


async def _bring_up(context: Context, record: JobRecord) -> None:
    """As `up`, and with new machines in the place of some that nobody reaches."""
    prepared = await plan(context)
    before = await _copies(context, record)
    try:
        await up(context, prepared=prepared)
        return
    except Unreachable:
        machines = await machines_of(context.stack, context.cloud, record)
        if machines.state != "READY" or machines.is_another:
            raise
        if await _copies(context, record) != before:
            raise Unreachable(
                "Worker cannot be reached from here",
                f"job {record.id} goes on: its log in gs://{record.bucket} grows",
                hint="See that SSH gets out of this network, then\n    tpuctl logs -f",
            ) from None
    context.emit(Note(f"Node {record.node} is READY but does not answer: it is made anew."))
    await launch.stop_through_bucket(record, context.store)
    await remove_nodes(await plan(context), context.emit)
    await up(context)


async def _copies(context: Context, record: JobRecord) -> dict[str, int]:
    """Which versions the bucket has of the attempt's logs and records: of one that runs, newer."""
    found = await context.store.list(f"{record.attempt_prefix}/worker-")
    return {one.name: one.generation for one in found}


async def remove_nodes(prepared: Prepared, emit: Emit) -> None:
    """Delete the nodes of a plan, or their request."""
    tpus = [one for one in prepared.resources if kind_of(one.address).is_tpu]
    plan = plan_down(tpus, await observe(tpus))
    if not plan.is_empty:
        await apply_plan(plan, tpus, emit)


async def _until_mended(context: Context, record: JobRecord) -> None:
    """Wait for the end of maintenance; a node whose repair has failed is taken away."""
    is_told = False

    async def probe() -> str | None:
        nonlocal is_told
        machines = await machines_of(context.stack, context.cloud, record)
        if "MAINTENANCE" not in machines.health:
            return machines.state
        if not is_told:
            is_told = True
            context.emit(Note(f"Node {record.node} is maintained by Google: waiting for its end."))
        await _require_wanted(context, record)
        return None

    state = await wait_until(
        probe,
        what=f"the end of maintenance of node {record.node}",
        seconds=MENDING_SECONDS,
        backoff=MENDING,
        clock=context.clock,
    )
    if state == BEYOND_REPAIR:
        await remove_nodes(await plan(context), context.emit)


async def _require_wanted(context: Context, record: JobRecord) -> None:
    if await was_stopped(context.store, record):
        raise RecoveryAborted("the job was stopped")
    if (await machines_of(context.stack, context.cloud, record)).was_taken_down:
        raise RecoveryAborted("the stack was taken down")


async def start_next(
    context: Context, record: JobRecord, wanted: Submission, why: Verdict
) -> tuple[JobRecord, bool]:
    """The job at the attempt after the record's, and whether it was started here.

    Whoever announces it starts it; where somebody else has, theirs is returned.
    """
    async with connections(context, required=True) as transports:
        nodes = await nodes_of(context.stack, context.cloud)
        wanted = await placed(wanted, context.stack, context.cloud, nodes)
        assert wanted.footing is not None
        chosen = {worker: transports[worker] for worker in record.workers}
        before = set(record.footing.node_ids) if record.footing is not None else set()
        if not before or before & set(wanted.footing.node_ids):
            await launch.stop(record, chosen)  # what is left of it holds the chips
        attempt = Attempt(
            number=record.attempt + 1,
            footing=wanted.footing,
            why=why,
            started=datetime.now(UTC),
            started_by=own_name(),
            claim=secrets.token_hex(8),
        )
        following = record.of(attempt)
        if not await announce(context.store, record, attempt):
            return await _of_another(context.store, record), False
        if await was_stopped(context.store, record):
            await tell_not_started(context.store, following, "the job was stopped")
            raise RecoveryAborted("the job was stopped")
        try:
            await start_attempt(wanted, following, context.store, chosen, context.emit)
        except TpuctlError as error:  # one more that failed, for whoever weighs it
            context.emit(Warned(error.diagnostics[0]))
        if await was_stopped(context.store, record):
            await launch.stop(following, chosen)
        return following, True


async def _of_another(store: ObjectStore, record: JobRecord) -> JobRecord:
    for attempt in await attempts_of(store, record):
        if attempt.number == record.attempt + 1:
            return record.of(attempt)
    raise Conflict(
        "Attempt vanished",
        f"attempt {record.attempt + 1} of job {record.id}",
        hint=(
            "Somebody else deletes the job's record. See what is left, then submit it again:\n"
            "    tpuctl jobs\n    tpuctl run SCRIPT"
        ),
    )
