"""The jobs of a stack's queue, and whose turn it is, read from the bucket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta

from tpuctl.cloud.objects import ObjectInfo, ObjectStore
from tpuctl.errors import Conflict, NotFound
from tpuctl.flows.jobs.attempts import read_record, with_start
from tpuctl.flows.jobs.jobs import in_submitted_order
from tpuctl.flows.machines.further_tpus import read_turns, turns_of
from tpuctl.flows.machines.handover import queued_stack_files
from tpuctl.model.jobs.job import JobRecord
from tpuctl.model.jobs.queue import MAX_PARALLEL, QueuePlace, Turns, in_order, open_jobs
from tpuctl.model.text.names import JOBS, turns_name
from tpuctl.polling import SystemClock
from tpuctl.resources.project.stack_record import read_contents

READERS = 16
KEPT = timedelta(hours=1)  # of a stack file that no job uses yet
STEPS = f"{JOBS}/*/{{job,start,ended}}.json"


class Queue:
    """The queue of a stack, read from its bucket.

    One job at a time has its turn on a TPU, in an object that gets the next one only once the job
    has ended: all programs that run the queue work on the same jobs. Of several TPUs each has its
    own, and none is in two turns.
    """

    def __init__(self, store: ObjectStore, stack: str) -> None:
        self._store = store
        self._stack = stack
        self._records: dict[str, JobRecord | None] = {}  # None: not of this queue

    async def next(self, number: int = 1) -> JobRecord | None:
        """The job whose turn it is on the stack's TPU of this number, as it was started if it was;
        None if there is none."""
        while True:
            turns, generation = await self._read_turns()
            current = _current(await self.waiting(), turns, number)
            if current is None:
                return None
            if turns.jobs.get(number) != current.id:
                content = turns.with_job(number, current.id).model_dump_json().encode()
                try:
                    await self._store.put_bytes(
                        turns_name(self._stack), content, if_generation=generation
                    )
                except Conflict:  # another program was first
                    continue
            return await with_start(self._store, current)

    async def needed(self) -> dict[int, JobRecord]:
        """The TPUs that are needed, by number, each with its job, or with one that waits for a
        TPU; as submitted."""
        turns, _ = await self._read_turns()
        waiting = await self.waiting()
        numbers = {job: number for number, job in turns.jobs.items()}
        needed = {numbers[record.id]: record for record in waiting if record.id in numbers}
        free = [record for record in waiting if record.id not in numbers]
        for number in range(1, MAX_PARALLEL + 1):
            job = next((record for record in free if may_run(record, number)), None)
            if number not in needed and job is not None:
                free.remove(job)
                needed[number] = job
        return needed

    async def further(self) -> list[int]:
        """The numbers of TPUs beside the stack's own that exist, or soon will."""
        return (await self._read_turns())[0].further

    async def enter(self, *numbers: int) -> None:
        """Note that further TPUs are about to be created."""
        await self._change_turns(lambda turns: turns.with_tpus(numbers))

    async def leave(self, number: int) -> None:
        """Note that a further TPU was deleted, unless another program has given it a job."""
        open_ids = {record.id for record in await self.waiting()}
        await self._change_turns(
            lambda turns: turns if turns.jobs.get(number) in open_ids else turns.without(number)
        )

    async def _read_turns(self) -> tuple[Turns, int]:
        return await read_turns(self._store, self._stack)

    async def _change_turns(self, change: Callable[[Turns], Turns]) -> None:
        name = turns_name(self._stack)

        def changed(text: bytes | None) -> bytes | None:
            before = turns_of(text, self._store.uri(name))
            after = change(before)
            return None if after == before else after.model_dump_json().encode()

        await self._store.update(name, changed, SystemClock())

    async def waiting(self) -> list[JobRecord]:
        """The queued jobs that have not ended, in the order in which they run, as submitted."""
        objects = await self._list()
        is_started = open_jobs(info.name for info in objects)
        jobs = [job for job in in_submitted_order(objects) if job in is_started]
        records: dict[str, JobRecord | None] = {}
        for start in range(0, len(jobs), READERS):
            part = jobs[start : start + READERS]
            records |= dict(zip(part, await asyncio.gather(*map(self._read, part)), strict=True))
        places = [
            QueuePlace(job, number, record.queued.priority, is_started[job])
            for number, (job, record) in enumerate(records.items())
            if record is not None and record.queued is not None
        ]
        in_turn = (records[place.job] for place in in_order(places))
        return [record for record in in_turn if record is not None]

    async def is_down_due(self, remains: Callable[[datetime], Awaitable[bool]]) -> bool:
        """Whether a job was queued with `down` since the stack was taken down last; or before, and
        that was interrupted: something that existed at the time `remains`."""
        contents = await read_contents(self._store, self._stack)
        count, at = (contents.down_count, contents.down_at) if contents is not None else (0, None)
        last: int | None = None
        for job in reversed(in_submitted_order(await self._list())):
            record = await self._read(job)
            if record is None or record.queued is None or record.placement is None:
                continue
            last = record.placement.down_count if last is None else last
            if record.placement.down_count != last:
                return False
            if record.queued.down:
                return last == count or (at is not None and await remains(at))
        return False

    async def remove_stack_files(self) -> None:
        """Delete the stack files of jobs that have ended, but those that may be about to be used:
        they are written before their jobs."""
        used = {record.queued.stack_file for record in await self.waiting() if record.queued}
        newest = self._store.clock.now() - KEPT
        for info in await queued_stack_files(self._store, self._stack):
            if info.name not in used and info.updated < newest:
                with suppress(NotFound):
                    await self._store.delete(info.name)

    async def _list(self) -> list[ObjectInfo]:
        try:
            return await self._store.list(f"{JOBS}/", STEPS)
        except NotFound:
            return []

    async def _read(self, job: str) -> JobRecord | None:
        """The record of a job of this queue, as submitted; damaged ones are none."""
        if job not in self._records:
            try:
                record = await read_record(self._store, f"{JOBS}/{job}/job.json", JobRecord, id=job)
            except (NotFound, Conflict):
                return None
            is_ours = record.queued is not None and record.stack == self._stack
            self._records[job] = record if is_ours else None
        return self._records[job]


def may_run(record: JobRecord, number: int) -> bool:
    """Whether the stack's TPU of this number may run a queued job."""
    return record.queued is not None and number <= record.queued.parallel


def _current(waiting: Sequence[JobRecord], turns: Turns, number: int) -> JobRecord | None:
    """The job of a TPU: the one that has its turn, or else the first that has none."""
    others = {job for each, job in turns.jobs.items() if each != number}
    free = [record for record in waiting if record.id not in others and may_run(record, number)]
    current = [record for record in waiting if record.id == turns.jobs.get(number)]
    return next(iter([*current, *free]), None)
