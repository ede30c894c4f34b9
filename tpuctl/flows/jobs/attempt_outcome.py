"""Why an attempt ended: classify its worker records, logs and the state of its node."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from tpuctl.cloud.clients import Cloud
from tpuctl.cloud.objects import ObjectStore
from tpuctl.errors import NotFound
from tpuctl.flows.machines.controller import is_controller_gone
from tpuctl.flows.machines.inventory import is_tpu_of, list_resources
from tpuctl.flows.stack.spending import read_ledgers
from tpuctl.model.cost.stack_cost import cost_of
from tpuctl.model.events import Emit, Note, ignore
from tpuctl.model.jobs.failures import LOG_TAIL, Failure, Machines, classify
from tpuctl.model.jobs.job import JobRecord, WorkerRecord
from tpuctl.model.stack.spending import NOTHING_SPENT, Spent
from tpuctl.model.stack.stack import Stack
from tpuctl.model.status.inventory import InventoryItem
from tpuctl.model.text.duration import seconds_of
from tpuctl.polling import Backoff
from tpuctl.resources.base import time_of
from tpuctl.resources.project.stack_record import Record
from tpuctl.units import dollars

# A machine that was shut down disappears some time before its node's state tells why.
SETTLE_SECONDS = 90.0
SETTLE = Backoff(initial=0.5, maximum=5.0, multiplier=1.5)
CLOCK_SKEW = timedelta(seconds=30)  # the most that two computers' clocks may differ
ENDED_REQUEST_STATES = ("SUSPENDING", "SUSPENDED", "FAILED")  # of a request for nodes
PREEMPTION = "compute.instances.preempted"  # the type of Compute Engine's operations
ENDING_STATES = ("STOPPING", "STOPPED", "DELETING", "")  # in which preempted instances are, too
UNCLEAR_FAILURES = ("worker-gone", "restarted", "peer-gone")
READERS = 16
# The first of these that any of several nodes is in is reported.
STATES_BY_PRIORITY = ("PREEMPTED", "TERMINATED", "DELETING", "STOPPED", "STOPPING")


async def find_failure(
    stack: Stack,
    cloud: Cloud,
    store: ObjectStore,
    record: JobRecord,
    workers: Mapping[int, WorkerRecord],
    emit: Emit = ignore,
) -> Failure | None:
    """Classify the attempt's failure; None if it succeeded.

    May wait until the cloud reports the state of unreachable machines, and emits a note if so.
    """
    logs = await read_log_tails(store, record, workers)
    explain = partial(classify, workers, logs, is_local=cloud.endpoint.is_local)
    failure = explain(Machines())
    if failure == explain(Machines("PREEMPTED", is_remote=stack.is_node)):
        return failure  # independent of the machines' state
    has_reported = False
    deadline = cloud.clock.now() + SETTLE_SECONDS
    for delay in SETTLE.delays():
        machines = await inspect_machines(stack, cloud, record)
        failure = explain(machines)
        is_unclear = failure is not None and failure.name in UNCLEAR_FAILURES
        left = deadline - cloud.clock.now()
        if failure is None or not is_unclear or left <= 0:
            return failure
        if not has_reported:
            has_reported = True
            emit(Note(f"{failure.cause} Checking the node's state for up to {left:.0f} s."))
        await cloud.clock.sleep(min(delay, left))
    raise AssertionError("backoff never ends")


async def read_log_tails(
    store: ObjectStore, record: JobRecord, workers: Mapping[int, WorkerRecord]
) -> dict[int, bytes]:
    """The log tails of failed workers, as far as they are in the bucket."""
    semaphore = asyncio.Semaphore(READERS)

    async def read_tail(worker: int) -> bytes:
        async with semaphore:
            info = await store.stat(record.log_name(worker))
            if info is None:
                return b""
            try:
                return await store.read_range(
                    record.log_name(worker), max(0, info.size - LOG_TAIL), LOG_TAIL
                )
            except NotFound:
                return b""

    failed = [number for number, worker in workers.items() if worker.state != "succeeded"]
    return dict(zip(failed, await asyncio.gather(*map(read_tail, failed)), strict=True))


async def inspect_machines(stack: Stack, cloud: Cloud, record: JobRecord) -> Machines:
    """The state of the machines that the attempt was started on.

    They are identified by id, since machines may have been recreated under the same names.
    """
    resources, contents, ledgers = await asyncio.gather(
        list_resources(
            cloud,
            stack.project,
            stack=stack.name,
            include=lambda kind: is_tpu_of(kind, stack),
            zones=(record.zone,),
        ),
        Record(stack, cloud).read(),
        read_ledgers(stack, cloud),
    )
    now = cloud.server_clock.now() + CLOCK_SKEW
    placement = record.placement
    in_zone = [resource for resource in resources if resource.zone == record.zone]
    nodes = [resource.node for resource in in_zone if resource.node is not None]
    ids = set(placement.node_ids) if placement is not None else set()
    attempt_nodes = [node for node in nodes if node.id in ids or not ids]
    machines = Machines(
        state=_state(in_zone, [node.state for node in attempt_nodes], len(ids) or len(stack.nodes)),
        health=next((node.health for node in attempt_nodes if "MAINTENANCE" in node.health), ""),
        is_spot=stack.is_spot,
        is_remote=stack.is_node,
        has_slices=stack.slices > 1,
        is_replaced=bool(ids) and any(node.id not in ids for node in nodes),
        was_deleted_by_down=(
            placement is not None
            and contents is not None
            and contents.down_count != placement.down_count
        ),
        limit=reached_limit(
            stack,
            placement.created if placement is not None else None,
            now,
            replace(ledgers, now=now).spent(),
        ),
    )
    has_ended = stack.is_compute and machines.state in ENDING_STATES
    if has_ended and await _was_preempted(stack, cloud, record):
        return replace(machines, state="PREEMPTED")
    is_ready = stack.is_node and machines.state == "READY"
    if is_ready and await is_controller_gone(stack.in_zone(record.zone), cloud):
        return replace(machines, state="TERMINATED")
    return machines


async def _was_preempted(stack: Stack, cloud: Cloud, record: JobRecord) -> bool:
    """Whether Google has preempted an instance of the attempt: it is deleted then, and only an
    operation remains."""
    request = {
        "project": stack.project,
        "zone": record.zone,
        "filter": f'operationType="{PREEMPTION}"',
    }
    client = cloud.client("zone_operations")
    operations = await cloud.call(
        "preemptions", lambda **options: list(client.list(request, **options))
    )
    created = record.placement.created if record.placement is not None else None
    return any(
        _is_machine_of(stack, operation.target_link.rpartition("/")[2])
        and (created is None or (time_of(operation.insert_time) or created) >= created)
        for operation in operations
    )


def _is_machine_of(stack: Stack, instance: str) -> bool:
    """Whether an instance is one of the stack's nodes, or a member of such a group."""
    return any(instance == node or instance.startswith(f"{node}-") for node in stack.nodes)


def _state(in_zone: list[InventoryItem], states: list[str], count: int) -> str:
    requests = [
        resource.state
        for resource in in_zone
        if resource.kind == "queued" and resource.state in ENDED_REQUEST_STATES
    ]
    if requests:
        return requests[0]
    for state in (*STATES_BY_PRIORITY, *(other for other in states if other != "READY")):
        if state in states:
            return state
    return "READY" if len(states) >= count else ""


def reached_limit(
    stack: Stack, created: datetime | None, now: datetime, spent: Spent = NOTHING_SPENT
) -> str:
    """The limit that machines created at that time have reached or are about to; "" for none.

    `now` is Google's time, which the machines go by, too, with CLOCK_SKEW. `spent` is the sum of
    the stack's ledger, to which the machines may not have written.
    """
    if created is None:
        return ""
    age = (now - max(created, spent.since or created)) / timedelta(hours=1)
    limits, hourly = stack.file.limits, cost_of(stack).per_hour
    if limits.max_hours is not None and max(age, spent.hours) >= limits.max_hours:
        return f"limits.max_hours, {limits.max_hours:g} hours"
    cost = max(age * (hourly or 0.0), spent.cost)
    if limits.max_cost is not None and cost >= limits.max_cost:
        return f"limits.max_cost, {dollars(limits.max_cost)}"
    if stack.budget is not None and spent.month >= stack.budget:
        return f"limits.budget, {stack.file.limits.budget}"
    queue = stack.file.tpu.queue
    run_for = queue.run_for if queue is not None else None
    if run_for is not None and age * 3600 >= seconds_of(run_for):
        return f"tpu.queue.run_for, {run_for}"
    return ""
