"""Many clients append to a queue and several programs run it, some of which are killed: each job is
started once and ends once, in an order that a queue in one process could have had."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.callers import Member
from tests.support.polling import async_until
from tests.support.projects import numbers
from tests.support.stack_jobs import write_script
from tpuctl.api import Tpuctl
from tpuctl.cloud.objects import ObjectStore
from tpuctl.cloud.server_clock import ServerClock
from tpuctl.flows.jobs.attempts import claim_start, record_end
from tpuctl.flows.jobs.jobs import read_status
from tpuctl.flows.queue.enqueue import append_jobs
from tpuctl.flows.queue.work import Queue, run_each
from tpuctl.flows.stack.up import up_without_tpu
from tpuctl.local_cloud import remote_control
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.model.jobs.attempt import Placement
from tpuctl.model.jobs.job import JobRecord
from tpuctl.model.jobs.queue import JobEnd, JobStart, Queued
from tpuctl.resources.project.stack_record import Contents

MakeStack = Callable[..., Tpuctl]
STACK = "bert"
NOW = datetime(2026, 11, 1, tzinfo=UTC)
MACHINE = Placement(zone="us-central1-b", node="bert-tpu", node_ids=("1",))


class Ahead(ServerClock):
    """Two hours from now."""

    def now(self) -> datetime:
        return super().now() + timedelta(hours=2)


class Killed(Exception):
    """A program was killed."""


@pytest.fixture
def store(null_cloud: LocalCloud) -> Iterator[ObjectStore]:
    with Member.owner(null_cloud).storage() as client:
        name = f"queue-{next(numbers)}"
        client.create_bucket(name)
        yield ObjectStore(client, name)


def job(number: int, priority: int = 0, *, skew: float = 0.0, parallel: int = 1) -> JobRecord:
    """A job whose client's clock is wrong by `skew` seconds."""
    return JobRecord(
        id=f"20261101-000000-job{number}",
        stack=STACK,
        project="p",
        zone="us-central1-b",
        node="bert-tpu",
        bucket="b",
        script="job.py",
        bundle="0" * 64,
        worker_count=1,
        workers=(0,),
        submitted=NOW + timedelta(seconds=skew),
        placement=Placement(zone="us-central1-b", node="bert-tpu"),
        queued=Queued(priority=priority, parallel=parallel),
    )


async def append(store: ObjectStore, record: JobRecord) -> None:
    await store.put_bytes(record.object_name, record.model_dump_json().encode(), if_generation=0)


@dataclass
class History:
    """What was done to the queue, in order: `submitted`, `started` and `ended` with a job's id."""

    events: list[tuple[str, str]] = field(default_factory=list)

    def of(self, step: str) -> list[str]:
        return [job_id for name, job_id in self.events if name == step]


class Program:
    """A program that runs the queue, and may be killed between any two of its steps."""

    def __init__(
        self, store: ObjectStore, history: History, chance: random.Random, deaths: float
    ) -> None:
        self.store, self.history, self.chance, self.deaths = store, history, chance, deaths

    async def may_die(self) -> None:
        if self.chance.random() < self.deaths:
            raise Killed
        await asyncio.sleep(0)

    async def run(self, record: JobRecord) -> None:
        await self.may_die()
        if record.is_waiting:
            start = JobStart(
                placement=MACHINE,
                worker_count=1,
                workers=(0,),
                started=NOW,
                write_id=secrets.token_hex(4),
            )
            if await claim_start(self.store, record, start):
                self.history.events.append(("started", record.id))
                await self.may_die()
        await self.may_die()
        mark = secrets.token_hex(4)
        end = await record_end(self.store, record, JobEnd(exit_code=0, ended=NOW, ended_by=mark))
        if end.ended_by == mark:
            self.history.events.append(("ended", record.id))
        await self.may_die()

    async def work(self, is_done: asyncio.Event, number: int = 1) -> None:
        while True:
            with suppress(Killed):
                queue = Queue(self.store, STACK)
                await run_each(queue, self.run, number)
                if is_done.is_set() and not await queue.waiting():
                    return
            await asyncio.sleep(0)


async def simulate(
    store: ObjectStore, count: int, clients: int, seed: int, *, deaths: float
) -> None:
    """Check each job's steps, and that none was started before one of a higher priority that was
    in the queue when its turn was decided: after the end of the one before."""
    chance, history, is_done = random.Random(seed), History(), asyncio.Event()
    drafts = [
        job(number, chance.choice([0, 0, 0, 5, -5]), skew=chance.uniform(-3600, 3600))
        for number in range(count)
    ]

    async def client(number: int) -> None:
        for draft in drafts[number::clients]:
            await append(store, draft)
            history.events.append(("submitted", draft.id))

    programs = [Program(store, history, random.Random(chance.random()), deaths) for _ in range(3)]
    working = [asyncio.ensure_future(program.work(is_done)) for program in programs]
    await asyncio.gather(*map(client, range(clients)))
    is_done.set()
    await asyncio.gather(*working)

    assert sorted(history.of("started")) == sorted(draft.id for draft in drafts)
    assert history.of("ended") == history.of("started"), "one at a time"
    priorities = {draft.id: draft.queued.priority for draft in drafts if draft.queued is not None}
    waiting: set[str] = set()  # since before the end of the job before
    new: set[str] = set()
    for step, job_id in history.events:
        if step == "submitted":
            new.add(job_id)
        elif step == "ended":
            waiting |= new
        else:
            waiting -= {job_id}
            new -= {job_id}
            overtaken = [each for each in waiting if priorities[each] > priorities[job_id]]
            assert not overtaken, (seed, job_id)


async def test_clients_and_killed_programs(store: ObjectStore) -> None:
    await simulate(store, 12, clients=4, seed=random.randrange(1 << 30), deaths=0.2)


async def test_no_two_jobs_have_the_turn_of_one_tpu(store: ObjectStore) -> None:
    """Two programs run the queue on three TPUs; some of the jobs are for the first alone."""
    seed = random.randrange(1 << 30)
    chance, is_done = random.Random(seed), asyncio.Event()
    for number in range(12):
        await append(store, job(number, parallel=chance.choice([1, 3])))
    is_done.set()
    histories = {number: History() for number in (1, 2, 3)}
    programs = [
        (number, Program(store, history, random.Random(chance.random()), 0.2))
        for number, history in histories.items()
        for _ in range(2)
    ]
    await asyncio.gather(*(program.work(is_done, number) for number, program in programs))
    for history in histories.values():
        steps = [job_id for _, job_id in history.events]
        assert steps[::2] == steps[1::2], f"one at a time, seed {seed}"
    started = [job_id for history in histories.values() for job_id in history.of("started")]
    assert sorted(started) == sorted(job(number).id for number in range(12)), seed


async def test_further_tpus_are_needed_by_their_jobs(store: ObjectStore) -> None:
    """As many as have a job, or one that waits for them; those that exist are remembered."""
    queue = Queue(store, STACK)
    assert {*await queue.needed()} == set()
    await append(store, job(0))
    await append(store, job(1, parallel=3))
    assert {*await queue.needed()} == {1, 2}
    await queue.enter(2)
    assert await queue.further() == [2]
    second = await queue.next(2)
    assert second is not None
    assert second.id == job(1).id
    assert {*await queue.needed()} == {1, 2}
    await queue.leave(2)
    assert await queue.further() == [2], "its job has not ended"
    await record_end(store, second, JobEnd(exit_code=0, ended=NOW))
    assert {*await queue.needed()} == {1}
    assert await queue.next(2) is None, "the other job is for the stack's own TPU"
    await queue.leave(2)
    assert await queue.further() == []


@pytest.mark.soak
@pytest.mark.timeout(3000)
async def test_eight_clients_and_many_jobs(store: ObjectStore) -> None:
    await simulate(store, 500, clients=8, seed=random.randrange(1 << 30), deaths=0.01)


async def test_order_is_that_of_priority_and_submission(store: ObjectStore) -> None:
    """By the bucket's clock: those of the clients are wrong."""
    for number, (priority, skew) in enumerate([(0, 900), (5, 0), (0, -900), (-5, 0), (5, -60)]):
        await append(store, job(number, priority, skew=skew))
    order: list[str] = []

    async def run(record: JobRecord) -> None:
        order.append(record.id[-1])
        await record_end(store, record, JobEnd(exit_code=0, ended=NOW))

    assert await run_each(Queue(store, STACK), run) == 5
    assert order == ["1", "4", "0", "2", "3"]


async def test_job_in_its_turn_is_not_overtaken(store: ObjectStore) -> None:
    queue = Queue(store, STACK)
    await append(store, job(0))
    first = await queue.next()
    await append(store, job(1, priority=100))
    again = await Queue(store, STACK).next()
    assert first is not None
    assert again is not None
    assert again.id == first.id == job(0).id


async def test_damaged_record_is_left_out(store: ObjectStore) -> None:
    await store.put_bytes("tpuctl/jobs/20261101-000000-bad/job.json", b"{")
    await append(store, job(1))
    first = await Queue(store, STACK).next()
    assert first is not None
    assert first.id == job(1).id


async def test_jobs_of_other_stacks_and_without_queue_are_left_out(store: ObjectStore) -> None:
    await append(store, job(0).model_copy(update={"stack": "other"}))
    await append(store, job(1).model_copy(update={"queued": None}))
    assert await Queue(store, STACK).next() is None


async def test_stack_files_without_job_are_removed_later(
    store: ObjectStore, null_cloud: LocalCloud
) -> None:
    """They are written before their jobs, and hold values of the job's environment."""
    used, unused = (f"tpuctl/queues/{STACK}/{name}.json" for name in ("used", "unused"))
    for name in (used, unused, "tpuctl/queues/other/its.json"):
        await store.put_bytes(name, b"{}")
    queued = Queued(stack_file=used)
    await append(store, job(0).model_copy(update={"queued": queued}))
    await Queue(store, STACK).remove_stack_files()
    assert len(await store.list("tpuctl/queues/")) == 3
    with Member.owner(null_cloud).storage() as client:
        await Queue(ObjectStore(client, store.name, clock=Ahead()), STACK).remove_stack_files()
    left = {info.name for info in await store.list("tpuctl/queues/")}
    assert left == {used, "tpuctl/queues/other/its.json"}


@pytest.mark.parametrize(
    ("code", "state"), [(0, "succeeded"), (3, "failed"), (143, "lost"), (None, "lost")]
)
async def test_end_is_known_without_the_last_records_of_machines(
    store: ObjectStore, code: int | None, state: str
) -> None:
    """The stack is taken down as soon as the end of the job was seen."""
    await append(store, job(0))
    start = JobStart(placement=MACHINE, worker_count=1, workers=(0,), started=NOW)
    record = job(0).started(start)
    if code is not None:
        await record_end(store, record, JobEnd(exit_code=code, ended=NOW))
    await store.put_bytes(
        f"tpuctl/stacks/{STACK}.json", f'{{"stack": "{STACK}", "down_count": 1}}'.encode()
    )
    assert (await read_status(store, record)).state == state


@pytest.mark.parametrize(
    ("downs", "count", "is_left", "is_due"),
    [
        ((True,), 0, False, True),
        ((True, False), 0, False, True),
        ((False,), 0, True, False),
        ((True,), 1, False, False),
        ((True,), 1, True, True),  # it was interrupted
        ((True, False), 2, True, True),
        ((False,), 1, True, False),
    ],
)
async def test_down_is_due_until_it_is_done(
    store: ObjectStore, downs: tuple[bool, ...], count: int, is_left: bool, is_due: bool
) -> None:
    async def remains(time: datetime) -> bool:
        assert time == NOW
        return is_left

    for number, down in enumerate(downs):
        await append(store, job(number).model_copy(update={"queued": Queued(down=down)}))
    contents = Contents(stack=STACK, down_count=count, down_at=NOW)
    await store.put_bytes(f"tpuctl/stacks/{STACK}.json", contents.model_dump_json().encode())
    assert await Queue(store, STACK).is_down_due(remains) is is_due


@pytest.mark.parametrize("down", [False, True])
async def test_stop_ends_the_wait_for_a_granted_request(
    make_stub_stack: MakeStack, cloud: LocalCloud, down: bool
) -> None:
    """Of a job in its turn, which may last for days. The request is for the next job, unless the
    stack was to be taken down."""
    stack = make_stub_stack(runtime="tpu-ubuntu2204-base, queue: true")
    remote_control.add_fault(cloud, "stockout", times="unlimited")
    await up_without_tpu(stack.context)
    script = write_script(stack, "print('hello')\n")
    (record,) = await append_jobs(
        stack.context, stack.submission(script, check=False), (), Queued(down=down)
    )
    running = asyncio.ensure_future(stack.run_queue())

    async def is_waiting() -> bool:
        activity = (await anext(stack.watch(60.0))).activity
        return activity is not None and "WAITING" in activity.text

    await async_until(is_waiting, "the request waiting")
    await stack.stop(await stack.job(record.id))
    assert await running == 1
    (job_summary,) = await stack.jobs()
    assert (job_summary.status.state, job_summary.status.exit_code) == ("stopped", 143)
    left = [item.kind for item in (await stack.status()).others]
    assert left == ([] if down else ["queued"])
    assert (await stack.down(delete_bucket=True)).leaks == ()


async def test_job_that_cannot_be_started_does_not_block_the_next(
    make_stub_stack: MakeStack, cloud: LocalCloud
) -> None:
    """Its variables are no longer in the stack file of this computer."""
    stack = make_stub_stack()
    await up_without_tpu(stack.context)
    script = write_script(stack, "print('hello')\n")
    submission = replace(stack.submission(script, check=False), env={"COLOR": "green"})
    records = [
        *await append_jobs(stack.context, submission, (), Queued()),
        *await append_jobs(stack.context, submission, (), Queued()),
    ]
    since = remote_control.calls(cloud)[-1]["number"]
    assert await stack.run_queue() == 2
    assert not [
        call for call in remote_control.calls(cloud, since) if "CreateNode" in call["method"]
    ], "no TPU is created for them"
    for summary in await stack.jobs():
        assert summary.record.id in [record.id for record in records]
        assert (summary.status.state, summary.status.exit_code) == ("lost", 69)
        assert "COLOR" in summary.status.detail
    assert (await stack.down(delete_bucket=True)).leaks == ()
