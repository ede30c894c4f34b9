"""Following a job through its attempts: what ended one is weighed, and another is started.

Everything that has to be known for that is in the bucket, so any machine goes on where another
was interrupted, and of several that go on at the same time one starts each attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

from tpuctl.errors import NoCapacity, TpuctlError
from tpuctl.flows.attempts import attempts_of, decide, was_stopped
from tpuctl.flows.follow import Ending, as_stopped, follow_attempt, tell_ending
from tpuctl.flows.restart import GivenUp, Means, bring_back, start_next, submission_of
from tpuctl.flows.showing import first_bytes, lines_of
from tpuctl.flows.submission import own_name
from tpuctl.flows.submit import tell_not_started
from tpuctl.flows.witness import machines_of, why_ended
from tpuctl.jobs import launch
from tpuctl.jobs.logs import GIVE_UP_SECONDS, worker_records
from tpuctl.model.attempt import Attempt, Retry, Verdict, retries_left
from tpuctl.model.events import Note, Warned
from tpuctl.model.failures import Failure
from tpuctl.model.job import EXIT_LOST, EXIT_TIMED_OUT, JobRecord
from tpuctl.model.log_range import WHOLE, LogPart
from tpuctl.polling import Backoff, wait_until
from tpuctl.remote.transport import Transport

__all__ = ["follow_to_the_end"]

PAUSE = Backoff(first=5.0, most=300.0, factor=4.0)  # before another try of what is broken
PATIENCE = GIVE_UP_SECONDS  # with machines that do not answer
BEGIN_SECONDS = 120.0  # after which an attempt that was announced has begun, or never will
REMOTE_SECONDS = 30.0  # between looks at a TPU node, whose end no machine tells
GONE = ("", "PREEMPTED", "TERMINATED", "DELETING", "STOPPED", "STOPPING", "SUSPENDED")
REUNIONS = 20  # how often machines are found again without a word of the job in between


async def follow_to_the_end(
    means: Means,
    record: JobRecord,
    *,
    workers: Sequence[int],
    show: bool = True,
    part: LogPart = WHOLE,
) -> int:
    """Emit the log of these workers from the record's attempt on, and of all that follow it.

    Of the record's attempt, where the part begins; of all, only the lines that it wants.

    An attempt that ended other than well is followed by another while the job's retries allow.
    The exit code is the last attempt's; 75 when the budget of preemptions is spent.
    Cancelling leaves the job, and what the cloud was asked for, alone.
    """
    return await _Story(means, workers, show, part).tell(record)


class _Story:
    def __init__(self, means: Means, workers: Sequence[int], show: bool, part: LogPart) -> None:
        self.means = means
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
                return tell_ending(ending, self.means.emit)
            try:
                following = await self._after(ending)
            except GivenUp as given_up:
                self.means.emit(Note(f"No further attempt: {given_up}."))
                following = ending
            if isinstance(following, Ending):
                if following.status.state == "lost" and await self._was_stopped(following):
                    following = replace(following, status=as_stopped(following.status))
                return tell_ending(following, self.means.emit)
            offsets = ending.offsets if following.attempt == record.attempt else {}
            record = following

    # One attempt ---------------------------------------------------------------------------

    async def _follow(self, record: JobRecord, offsets: Mapping[int, int] | None) -> Ending:
        means = self.means
        if record.attempt > 1 and record.attempt not in self.own:
            await self._until_begun(record)

        async def is_gone() -> bool:
            return (await machines_of(means.stack, means.cloud, record)).state in GONE

        async with means.connections(required=False) as transports:
            mine = {one: transports[one] for one in record.workers if one in transports}
            watching = asyncio.ensure_future(self._watch_node(record, mine))
            try:
                if offsets is None:
                    offsets = await first_bytes(self.part, record, self.workers, means.store, mine)
                with lines_of(means.emit, self.workers, self.part) as emit:
                    return await follow_attempt(
                        record,
                        means.store,
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
        store = self.means.store

        async def probe() -> bool | None:
            return bool(await worker_records(store, record)) or None

        try:
            await wait_until(
                probe,
                what=f"attempt {record.attempt} beginning",
                seconds=BEGIN_SECONDS,
                backoff=Backoff(0.2, 5.0),
                clock=self.means.cloud.clock,
            )
        except TpuctlError:
            await tell_not_started(store, record, "whoever announced it was interrupted")

    async def _watch_node(self, record: JobRecord, mine: Mapping[int, Transport]) -> None:
        """End what waits for a TPU node that is gone: its script may do so for ever.

        Through the connections there are: the controller answers still, as no node does.
        """
        means = self.means
        if not means.stack.is_node:
            return
        while True:
            await means.cloud.clock.sleep(REMOTE_SECONDS)
            with suppress(TpuctlError):
                machines = await machines_of(means.stack, means.cloud, record)
                if machines.state in ("PREEMPTED", "TERMINATED"):
                    means.emit(Note(f"The TPU node is {machines.state}: ending what waits for it."))
                    if not await launch.stop(record, mine, because_of=record.workers[0]):
                        await launch.stop_through_bucket(record, means.store)
                    return

    # Between attempts ----------------------------------------------------------------------

    async def _after(self, ending: Ending) -> JobRecord | Ending:
        """The attempt to follow now, or how the job ended where there will be none."""
        means, record = self.means, ending.record
        if not record.bundle_name:  # no bucket could be reached
            return ending
        try:
            attempts = await attempts_of(means.store, record)
            left = retries_left(record.retries, attempts)
            decided = await self._decide(ending, attempts, left)
        except TpuctlError as error:
            if ending.status.state != "failed":
                raise
            means.emit(Warned(error.diagnostics[0]))  # its own exit code is known all the same
            return ending
        return await self._again(record, decided, left) if isinstance(decided, Verdict) else decided

    async def _decide(
        self, ending: Ending, attempts: Sequence[Attempt], left: Mapping[Retry, int]
    ) -> Verdict | JobRecord | Ending:
        """Why another attempt is to be started; else as `_after`."""
        means, record = self.means, ending.record
        for attempt in attempts:
            if attempt.number == record.attempt + 1:
                means.emit(Note(f"{_why(record, attempt.why)}\nAttempt {attempt.number} follows."))
                return record.of(attempt)
        if await self._was_stopped(ending):
            return ending
        verdict = await decide(means.store, record, None)
        return verdict or await self._weigh(ending, left)

    async def _was_stopped(self, ending: Ending) -> bool:
        return bool(ending.record.bundle_name) and await was_stopped(
            self.means.store, ending.record
        )

    async def _weigh(
        self, ending: Ending, left: Mapping[Retry, int]
    ) -> Verdict | JobRecord | Ending:
        means, record = self.means, ending.record
        failure = await why_ended(
            means.stack, means.cloud, means.store, record, ending.workers, means.emit
        )
        assert failure is not None  # it did not succeed
        if failure.name == "worker-gone" and await self._is_found_again(ending):
            return record
        if failure.kind == "ended":
            return _ended(ending, failure)
        if left[failure.kind] == 0:
            return _spent(ending, failure)
        submission_of(means, record)  # raises what is in the way, before anything is decided
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
        decided = await decide(means.store, record, verdict)
        assert decided is not None
        return decided

    async def _again(self, record: JobRecord, why: Verdict, left: Mapping[Retry, int]) -> JobRecord:
        """The next attempt, started here or by somebody quicker."""
        means = self.means
        wanted = submission_of(means, record)
        after = {kind: count - (kind == why.kind) for kind, count in left.items()}
        means.emit(
            Note(
                f"{_why(record, why)}\nAttempt {record.attempt + 1} follows; left then of "
                f"job.retries: {', '.join(f'{kind} {count}' for kind, count in after.items())}."
            )
        )
        try:
            if why.kind == "infrastructure":
                await self._pause(record.retries.infrastructure - left["infrastructure"])
            await bring_back(means, record)
            following, is_own = await start_next(means, record, wanted, why)
        except asyncio.CancelledError:
            means.emit(
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
                self.means.emit(Note(f"Trying again in {seconds:.0f} s."))
                await self.means.cloud.clock.sleep(seconds)
                return

    async def _is_found_again(self, ending: Ending) -> bool:
        """Whether the machines that fell silent answer again, and the attempt is still there.

        This machine's address may have changed: `up` lets the new one in.
        """
        means, record = self.means, ending.record
        # One whose own supervisor calls it lost has answered: there is nothing to find again.
        silent = [one for one in ending.workers.values() if one.state == "lost" and not one.synced]
        lost = [one.worker for one in silent]
        machines = await machines_of(means.stack, means.cloud, record)
        if not lost or machines.state != "READY" or self.reunions >= REUNIONS:
            return False
        means.emit(Note("Its node is READY: trying to reach the workers again."))
        try:
            await means.bring_up(await means.plan())
            async with means.connections(required=True) as transports:
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
