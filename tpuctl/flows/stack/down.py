"""`down`: delete the stack in every zone, and verify what remains."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from tpuctl.catalog import HOURS_PER_MONTH, Api
from tpuctl.cloud.clients import Cloud
from tpuctl.engine.apply import apply
from tpuctl.engine.planner import Snapshot, observe_each, plan_down
from tpuctl.engine.resource import Resource
from tpuctl.errors import ApiDisabled, NotFound, TpuctlError
from tpuctl.flows.context import Context
from tpuctl.flows.machines.further_tpus import list_further, stack_of_item
from tpuctl.flows.machines.inventory import list_resources, was_brought_up
from tpuctl.flows.stack.apply import combined_error, errors_of
from tpuctl.flows.stack.spending import end_spending
from tpuctl.model.cost.cost import storage_cost
from tpuctl.model.events import Emit, Note, Outcome, WarningIssued
from tpuctl.model.plan import Action, Plan
from tpuctl.model.stack.stack import Stack
from tpuctl.model.stack.stack_folder import forget_folder, other_folder_note
from tpuctl.model.status.inventory import InventoryItem
from tpuctl.model.status.status import Down, Holding, Remaining
from tpuctl.model.text.names import CACHE
from tpuctl.polling import gather_all
from tpuctl.remote.openssh import HostsFile
from tpuctl.resources.access.secret_grants import removed_grants
from tpuctl.resources.composition import in_other_zones, kind_of, resources_of
from tpuctl.resources.leftover import UnreadResource
from tpuctl.resources.project.bucket import Bucket
from tpuctl.resources.project.stack_record import Record
from tpuctl.resources.tpu.queued_resource import QueuedNodes
from tpuctl.resources.tpu.tpu_node import QUEUED

MAX_OBJECTS = 20_000  # listed to measure a bucket: 20 pages
PAGE_SIZE = 1000
RECORD_SECONDS = 5.0  # how long deletions wait for the count in the stack's record


@dataclass(frozen=True)
class Teardown:
    """The plan of `down`, including resources in zones that the stack file no longer names."""

    stack: Stack
    plan: Plan
    resources: tuple[Resource, ...]
    unused_apis: frozenset[Api] = frozenset()  # without permission to list what they sell
    steps: tuple[Resource, ...] = ()  # the same resources, as the plan deletes them
    was_up: bool = True  # otherwise disabled APIs have nothing of the stack
    errors: Mapping[str, TpuctlError] = field(default_factory=dict)  # of reading its record


async def down(
    context: Context,
    *,
    delete_bucket: bool = False,
    confirm: Callable[[Teardown], None] | None = None,
) -> Down:
    """Delete the stack, then check what remains of it.

    No failure keeps what is charged from being deleted, except that of its own deletion: all are
    raised together at the end. `confirm` receives the plan first; it may raise to cancel. Raises
    NotFound for a project that does not exist, or is not visible, unless `up` would create it.
    """
    stack, cloud = context.stack, context.cloud
    await cloud.abandoned_calls()  # of an interrupted `up`: what they create is deleted, too
    teardown = await prepare_down(
        stack, cloud, delete_bucket=delete_bucket, has_file=context.has_file
    )
    errors = dict(teardown.errors)
    if not teardown.plan.is_empty:
        note = other_folder_note(stack, context.jobs_cloud) if context.has_file else None
        if note is not None:
            context.emit(note)
        if confirm is not None:
            confirm(teardown)
        errors |= await _delete(teardown, cloud, context.emit)
        try:
            await end_spending(stack, cloud, has_file=context.has_file)
        except TpuctlError as error:  # of what no longer exists
            context.emit(WarningIssued(error.diagnostics[0]))
    remaining, unverified = await verify_down(teardown, cloud)
    errors |= {subject: unverified[subject] for subject in unverified.keys() - errors.keys()}
    down = Down(remaining)
    if errors:
        is_free = cloud.endpoint.is_local
        context.emit(Note(_outcome_text(remaining, unverified, is_free=is_free)))
        raise combined_error(errors, stack.project)
    if not down.leaks:
        forget_folder(stack, context.jobs_cloud)
        with suppress(OSError):
            HostsFile(stack.name, stack.project, context.jobs_cloud).remove()
    return down


async def _delete(teardown: Teardown, cloud: Cloud, emit: Emit) -> dict[str, TpuctlError]:
    """Apply the plan, and count this `down` in the stack's record; returns what failed.

    A concurrent `up` should see the count before it misses the first resource. But deleting what is
    charged does not wait for a bucket that does not answer.
    """
    record = Record(teardown.stack, cloud)
    counting = asyncio.ensure_future(record.count_down())
    try:
        await asyncio.wait({counting}, timeout=RECORD_SECONDS)
        results = await apply(teardown.plan, teardown.steps, emit)
        errors = errors_of(results)
        bucket = f"bucket/{teardown.stack.bucket}"
        try:
            await counting
        except NotFound:  # without a bucket there is no record
            pass
        except TpuctlError as error:
            if bucket not in results or results[bucket].outcome is not Outcome.DONE:
                errors = {**errors, record.uri: error}
        return errors
    finally:
        counting.cancel()


def _outcome_text(
    remaining: Sequence[Remaining], unverified: Iterable[str], *, is_free: bool
) -> str:
    """What was deleted, what was not, and what could not be read, for a `down` that failed."""
    deleted = [item.address for item in remaining if item.state == "deleted"]
    left = [item for item in remaining if item.state == "remains"]
    charged = [item.address for item in left if item.is_billable]
    others = [item.address for item in left if not item.is_billable]
    where = " on Google" if is_free else ""
    texts = [
        f"Deleted: {', '.join(deleted)}." if deleted else "",
        f"Still charged{where}: {', '.join(charged)}." if charged else "",
        f"Not deleted, and not charged: {', '.join(others)}." if others else "",
    ]
    if names := sorted(unverified):
        texts.append(f"Not checked: {', '.join(names)}.")
    return " ".join(filter(None, ["" if deleted else "Nothing was deleted.", *texts]))


async def prepare_down(
    stack: Stack, cloud: Cloud, *, delete_bucket: bool = False, has_file: bool = True
) -> Teardown:
    """Plan the deletion of everything in the project that belongs to the stack.

    What cannot be read fails as a step of the plan, or is deleted if it is listed. Raises NotFound
    if the project does not exist, or is not visible, unless `up` would create it.
    """
    unused_apis = stack.unused_apis if has_file else frozenset[Api]()
    resources = resources_of(stack, cloud, delete_bucket=delete_bucket)
    existing, snapshot, errors, problems = await _list_and_observe(  # listed again when it is done
        cloud,
        stack,
        resources,
        unused_apis,
        must_exist=not (has_file and stack.file.project.create),
    )
    was_up = not has_file
    if any(isinstance(error, ApiDisabled) for error in (*errors.values(), *problems.values())):
        was_up = was_up or await was_brought_up(stack, cloud, existing)
    errors = _of_used(errors, was_up)
    record_errors: dict[str, TpuctlError] = {}
    of_stack = [item for item in existing if item.stack == stack.name]
    leftovers = in_other_zones(of_stack, stack, cloud, resources, delete_bucket=delete_bucket)
    for item in existing:
        if item.stack != stack.name:
            leftovers += in_other_zones([item], stack_of_item(item, stack), cloud, ())
    try:
        leftovers += await removed_grants(stack, cloud, resources)
    except TpuctlError as error:
        record_errors[Record(stack, cloud).uri] = error
    if leftovers:
        more, more_errors = await observe_each(leftovers)
        resources += leftovers
        snapshot, errors = {**snapshot, **more}, {**errors, **more_errors}
    listed = {item.address for item in existing} | {_home_address(item, stack) for item in existing}
    steps = [
        UnreadResource(
            resource,
            errors[resource.address],
            is_listed=resource.address in listed and _is_charged(resource),
        )
        if resource.address in errors
        else resource
        for resource in resources
    ]
    plan = plan_down(steps, snapshot)
    plan = replace(plan, after=_charged_first(plan, steps, stack))
    return Teardown(stack, plan, tuple(resources), unused_apis, tuple(steps), was_up, record_errors)


def _of_used(errors: Mapping[str, TpuctlError], was_up: bool) -> dict[str, TpuctlError]:
    """The errors, without those of disabled APIs if the stack was never up."""
    return {
        subject: error
        for subject, error in errors.items()
        if was_up or not isinstance(error, ApiDisabled)
    }


def _is_charged(resource: Resource) -> bool:
    """Whether it is charged, and deleted without a look at it: the bucket's data is not."""
    return resource.is_billable and not resource.address.startswith(f"{Bucket.kind}/")


def _charged_first(
    plan: Plan, resources: Sequence[Resource], stack: Stack
) -> dict[str, frozenset[str]]:
    """The plan's edges, but what is charged is not deleted after anything that is not: its failure
    would keep it. Nodes of a request, which are deleted with it, are left to it."""
    charged = {resource.address for resource in resources if _is_charged(resource)}
    after = {
        address: needed & charged if address in charged else needed
        for address, needed in plan.after.items()
    }
    requests = {
        _zone_of(address, stack): address for address in charged if kind_of(address) is QueuedNodes
    }
    for change in plan:
        if change.fields == QUEUED and (zone := _zone_of(change.address, stack)) in requests:
            after[change.address] |= {requests[zone]}
    return after


def _zone_of(address: str, stack: Stack) -> str:
    """The zone of a zonal resource; an address in the zone in use need not name it."""
    _, *zone, _ = address.split("/")
    return zone[0] if zone else stack.zone


async def _list_and_observe(
    cloud: Cloud,
    stack: Stack,
    resources: Sequence[Resource],
    unused_apis: Collection[Api],
    *,
    must_exist: bool = False,
) -> tuple[list[InventoryItem], Snapshot, Mapping[str, TpuctlError], Mapping[str, TpuctlError]]:
    """Both at the same time; also returns the errors of resources and of listings."""
    problems: dict[str, TpuctlError] = {}
    work: list[Awaitable[Any]] = [
        list_resources(
            cloud,
            stack.project,
            stack=stack.name,
            must_exist=must_exist,
            unused_apis=unused_apis,
            on_error=lambda kind, error: problems.update({f"{kind.kind}/*": error}),
        ),
        list_further(stack, cloud, problems),
        observe_each(resources),
    ]
    listed, further, (snapshot, errors) = await gather_all(work)
    return [*listed, *further], snapshot, errors, problems


async def verify_down(
    teardown: Teardown, cloud: Cloud
) -> tuple[tuple[Remaining, ...], Mapping[str, TpuctlError]]:
    """Read everything from the cloud again and report what still exists, and the errors of what
    cannot be read.

    The project is listed once more, so resources created in the meantime are included. A
    remaining bucket is reported with its size and monthly cost.
    """
    stack = teardown.stack
    existing, snapshot, errors, problems = await _list_and_observe(
        cloud, stack, teardown.resources, teardown.unused_apis
    )
    errors, problems = (_of_used(problem, teardown.was_up) for problem in (errors, problems))
    checked = [
        line
        for resource in teardown.resources
        if resource.address not in errors
        and (line := _remaining(resource, teardown.plan, snapshot)) is not None
    ]
    addresses = {resource.address for resource in teardown.resources} - errors.keys()
    for leftover in existing:
        if leftover.address not in addresses and _home_address(leftover, stack) not in addresses:
            checked.append(
                Remaining(leftover.address, "remains", "still exists", leftover.is_billable)
            )
    buckets = {resource.address: resource for resource in existing if resource.kind == "bucket"}
    remaining = [
        await _with_bucket_size(remaining, buckets.get(remaining.address), cloud)
        for remaining in checked
    ]
    return tuple(remaining), {**errors, **problems}


async def _with_bucket_size(
    remaining: Remaining, bucket: InventoryItem | None, cloud: Cloud
) -> Remaining:
    if bucket is None or remaining.state == "deleted":
        return remaining
    try:
        holding = await measure_bucket(cloud, bucket.name)
    except TpuctlError:  # denied or deleted meanwhile: reported without its size
        return remaining
    per_hour = storage_cost(bucket.detail, holding.bytes).per_hour
    per_month = None if per_hour is None else per_hour * HOURS_PER_MONTH
    return replace(remaining, holding=holding, per_month=per_month)


def _home_address(resource: InventoryItem, stack: Stack) -> str:
    return (
        f"{resource.kind}/{resource.name}"
        if resource.zone in ("", stack.zone)
        else resource.address
    )


def _remaining(resource: Resource, plan: Plan, snapshot: Snapshot) -> Remaining | None:
    """None if it did not exist before, and does not now."""
    planned = plan.change(resource.address)
    now = resource.removal(snapshot[resource.address])
    if now.is_work:
        state = "remains"
    elif (
        now.action is Action.LEAVE
        and not planned.is_work
        and snapshot[resource.address] is not None
    ):
        state = "kept"
    elif planned.is_work:
        state = "deleted"
    else:
        return None
    return Remaining(resource.address, state, now.because, resource.is_billable)


async def measure_bucket(
    cloud: Cloud, bucket: str, *, max_objects: int = MAX_OBJECTS, page_size: int = PAGE_SIZE
) -> Holding:
    """The size of a bucket, from up to `max_objects` objects. Raises TpuctlError."""

    def sizes(**options: Any) -> Holding:
        listing = cloud.client("storage").list_blobs(
            bucket, page_size=page_size, fields="items(name,size),nextPageToken", **options
        )
        total = count = cached = 0
        for part in listing.pages:
            for blob in part:
                total += blob.size or 0
                cached += (blob.size or 0) if blob.name.startswith(f"{CACHE}/") else 0
                count += 1
            if count >= max_objects:
                return Holding(total, count, listing.next_page_token is None, cached)
        return Holding(total, count, cached_bytes=cached)

    return await cloud.call(f"the size of gs://{bucket}", sizes)
