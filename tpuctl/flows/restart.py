"""Another attempt of a job: its machines brought back, claimed against others, and started."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

from tpuctl.cloud.clients import Cloud
from tpuctl.cloud.objects import ObjectStore
from tpuctl.engine.planner import observe, plan_down
from tpuctl.errors import Conflict, NoCapacity, NotFound, TpuctlError, Unreachable
from tpuctl.flows.attempts import announce, attempts_of, was_stopped
from tpuctl.flows.nodes import nodes_of
from tpuctl.flows.provision import Prepared, apply_plan
from tpuctl.flows.submission import Submission, own_name, placed
from tpuctl.flows.submit import start_attempt, tell_not_started
from tpuctl.flows.witness import machines_of
from tpuctl.jobs import launch
from tpuctl.model.attempt import Attempt, Verdict
from tpuctl.model.events import Emit, Note, Warned
from tpuctl.model.job import JobRecord
from tpuctl.model.stack import Stack
from tpuctl.polling import Backoff, wait_until
from tpuctl.remote.transport import Transport
from tpuctl.resources.composition import kind_of

__all__ = ["GivenUp", "Means", "bring_back", "remove_nodes", "start_next", "submission_of"]

CAPACITY_SECONDS = 6 * 3600.0  # for so long a node is asked for again where there is none
CAPACITY = Backoff(first=30.0, most=600.0, factor=1.6)
MENDING_SECONDS = 2 * 3600.0  # of maintenance
MENDING = Backoff(first=1.0, most=30.0, factor=1.5)
ENCOUNTERS, ENCOUNTER_SECONDS = 300, 2.0  # looks at a node that somebody else replaces
BEYOND_REPAIR = "UNKNOWN"  # "unknown state after a failed repair"


class GivenUp(Exception):
    """Somebody wants no further attempt: the job was stopped, or its stack taken down."""


class Connections(Protocol):
    def __call__(
        self, *, required: bool
    ) -> AbstractAsyncContextManager[Mapping[int, Transport]]: ...


@dataclass(frozen=True)
class Means:
    """What another attempt needs of the stack that the job belongs to."""

    stack: Stack
    cloud: Cloud
    store: ObjectStore
    emit: Emit
    cloud_name: str
    plan: Callable[[], Awaitable[Prepared]]
    bring_up: Callable[[Prepared], Awaitable[object]]  # carries the plan out, asking nobody
    connections: Connections


def submission_of(means: Means, record: JobRecord) -> Submission:
    """What the next attempt is started with. Raises what is in its way, before anything is done."""
    if not record.bundle_name:
        raise NotFound(
            "Bundle is not in the bucket",
            f"job {record.id} was sent over SSH, and went with its machines",
            hint="Submit it anew with\n    tpuctl run",
        )
    return Submission.again(record, means.stack, cloud=means.cloud_name)


async def bring_back(means: Means, record: JobRecord) -> None:
    """See that the stack's machines are ready for jobs, made anew where they are gone.

    Where there is no capacity it is asked for again, for a time that is told. Raises GivenUp
    when the job was stopped or the stack taken down meanwhile.
    """
    clock = means.cloud.clock
    until = clock.now() + CAPACITY_SECONDS
    delays = CAPACITY.delays()
    is_told = False
    encounters = 0
    await _until_mended(means, record)
    while True:
        await _require_wanted(means, record)
        try:
            await _bring_up(means, record)
            return
        except Conflict:
            encounters += 1
            if encounters > ENCOUNTERS or not await _is_being_replaced(means, record):
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
                means.emit(
                    Note(
                        f"{error.diagnostics[0].summary}: asking again until "
                        f"{end:%Y-%m-%d %H:%M} UTC, next in {delay:.0f} s"
                    )
                )
            await clock.sleep(delay)


async def _is_being_replaced(means: Means, record: JobRecord) -> bool:
    """Whether somebody else who recovers the job is at it, and the node is in between for now."""
    machines = await machines_of(means.stack, means.cloud, record)
    return machines.state in ("DELETING", "") or machines.is_another


async def _bring_up(means: Means, record: JobRecord) -> None:
    """As `up`, and with new machines in the place of some that nobody reaches."""
    prepared = await means.plan()
    before = await _copies(means, record)
    try:
        await means.bring_up(prepared)
        return
    except Unreachable:
        machines = await machines_of(means.stack, means.cloud, record)
        if machines.state != "READY" or machines.is_another:
            raise
        if await _copies(means, record) != before:
            raise Unreachable(
                "Worker cannot be reached from here",
                f"job {record.id} goes on: its log in gs://{record.bucket} grows",
                hint="See that SSH gets out of this network, then\n    tpuctl logs -f",
            ) from None
    means.emit(Note(f"Node {record.node} is READY but does not answer: it is made anew."))
    await launch.stop_through_bucket(record, means.store)
    await remove_nodes(await means.plan(), means.emit)
    await means.bring_up(await means.plan())


async def _copies(means: Means, record: JobRecord) -> dict[str, int]:
    """Which versions the bucket has of the attempt's logs and records: of one that runs, newer."""
    found = await means.store.list(f"{record.attempt_prefix}/worker-")
    return {one.name: one.generation for one in found}


async def remove_nodes(prepared: Prepared, emit: Emit) -> None:
    """Delete the nodes of a plan, or their request."""
    tpus = [one for one in prepared.resources if kind_of(one.address).is_tpu]
    plan = plan_down(tpus, await observe(tpus))
    if not plan.is_empty:
        await apply_plan(plan, tpus, emit)


async def _until_mended(means: Means, record: JobRecord) -> None:
    """Wait for the end of maintenance; a node whose repair has failed is taken away."""
    is_told = False

    async def probe() -> str | None:
        nonlocal is_told
        machines = await machines_of(means.stack, means.cloud, record)
        if "MAINTENANCE" not in machines.health:
            return machines.state
        if not is_told:
            is_told = True
            means.emit(Note(f"Node {record.node} is maintained by Google: waiting for its end."))
        await _require_wanted(means, record)
        return None

    state = await wait_until(
        probe,
        what=f"the end of maintenance of node {record.node}",
        seconds=MENDING_SECONDS,
        backoff=MENDING,
        clock=means.cloud.clock,
    )
    if state == BEYOND_REPAIR:
        await remove_nodes(await means.plan(), means.emit)


async def _require_wanted(means: Means, record: JobRecord) -> None:
    if await was_stopped(means.store, record):
        raise GivenUp("the job was stopped")
    if (await machines_of(means.stack, means.cloud, record)).was_taken_down:
        raise GivenUp("the stack was taken down")


async def start_next(
    means: Means, record: JobRecord, wanted: Submission, why: Verdict
) -> tuple[JobRecord, bool]:
    """The job at the attempt after the record's, and whether it was started here.

    Whoever announces it starts it; where somebody else has, theirs is returned.
    """
    async with means.connections(required=True) as transports:
        nodes = await nodes_of(means.stack, means.cloud)
        wanted = await placed(wanted, means.stack, means.cloud, nodes)
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
        if not await announce(means.store, record, attempt):
            return await _of_another(means.store, record), False
        if await was_stopped(means.store, record):
            await tell_not_started(means.store, following, "the job was stopped")
            raise GivenUp("the job was stopped")
        try:
            await start_attempt(wanted, following, means.store, chosen, means.emit)
        except TpuctlError as error:  # one more that failed, for whoever weighs it
            means.emit(Warned(error.diagnostics[0]))
        if await was_stopped(means.store, record):
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
