"""`down`: delete the stack in every zone, and verify what remains."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from tpuctl.catalog import HOURS_PER_MONTH, Api
from tpuctl.cloud.clients import Cloud
from tpuctl.engine.planner import Snapshot, observe, plan_down
from tpuctl.engine.resource import Resource
from tpuctl.errors import NotFound, TpuctlError
from tpuctl.flows.apply import apply_plan
from tpuctl.flows.context import Context
from tpuctl.flows.inventory import list_resources
from tpuctl.model.cost import storage_cost
from tpuctl.model.inventory import InventoryItem
from tpuctl.model.names import CACHE
from tpuctl.model.plan import Action, Plan
from tpuctl.model.stack import Stack
from tpuctl.model.stack_folder import forget_folder, other_folder_note
from tpuctl.model.status import Down, Holding, Remaining
from tpuctl.polling import gather_all
from tpuctl.remote.openssh import HostsFile
from tpuctl.resources.composition import in_other_zones, resources_of
from tpuctl.resources.secret_grants import removed_secret_grants
from tpuctl.resources.stack_record import Record

__all__ = ["Teardown", "down", "measure_bucket", "prepare_down", "verify_down"]

MAX_OBJECTS = 20_000  # listed to measure a bucket: 20 pages
PAGE_SIZE = 1000


@dataclass(frozen=True)
class Teardown:
    """The plan of `down`, including resources in zones that the stack file no longer names."""

    stack: Stack
    plan: Plan
    resources: tuple[Resource, ...]
    unused_apis: frozenset[Api] = frozenset()  # without permission to list what they sell


async def down(
    context: Context,
    *,
    delete_bucket: bool = False,
    confirm: Callable[[Teardown], None] | None = None,
) -> Down:
    """Delete the stack, then check what remains of it.

    `confirm` receives the plan first; it may raise to cancel. Raises NotFound if there is neither
    a stack file nor a project.
    """
    stack, cloud = context.stack, context.cloud
    await cloud.abandoned_calls()  # of an interrupted `up`: what they create is deleted, too
    teardown = await prepare_down(
        stack, cloud, delete_bucket=delete_bucket, must_exist=not context.has_file
    )
    if not teardown.plan.is_empty:
        note = other_folder_note(stack, context.jobs_cloud) if context.has_file else None
        if note is not None:
            context.emit(note)
        if confirm is not None:
            confirm(teardown)
        with suppress(NotFound):  # without a bucket there is no record
            await Record(stack, cloud).update(lambda contents: contents.with_down())
        await apply_plan(teardown.plan, teardown.resources, context.emit)
    done = Down(await verify_down(teardown, cloud))
    if not done.leaks:
        forget_folder(stack, context.jobs_cloud)
        with suppress(OSError):
            HostsFile(stack.name, stack.project, context.jobs_cloud).remove()
    return done


async def prepare_down(
    stack: Stack, cloud: Cloud, *, delete_bucket: bool = False, must_exist: bool = False
) -> Teardown:
    """Plan the deletion of everything in the project that belongs to the stack.

    Raises NotFound if the project does not exist and `must_exist`, for a stack without a file, of
    which nothing is known.
    """
    unused_apis = frozenset[Api]() if must_exist else stack.unused_apis
    resources = resources_of(stack, cloud, delete_bucket=delete_bucket)
    project_resources, snapshot = await _list_and_observe(
        cloud, stack, resources, unused_apis, must_exist=must_exist
    )
    leftovers = in_other_zones(
        project_resources, stack, cloud, resources, delete_bucket=delete_bucket
    )
    leftovers += await removed_secret_grants(stack, cloud, resources)
    if leftovers:
        resources += leftovers
        snapshot = await observe(resources)
    return Teardown(stack, plan_down(resources, snapshot), tuple(resources), unused_apis)


async def _list_and_observe(
    cloud: Cloud,
    stack: Stack,
    resources: Sequence[Resource],
    unused_apis: Collection[Api],
    *,
    must_exist: bool = False,
) -> tuple[list[InventoryItem], Snapshot]:
    """Both at the same time; an error of the listing says more, and is raised first."""
    work: list[Awaitable[Any]] = [
        list_resources(
            cloud,
            stack.project,
            stack=stack.name,
            must_exist=must_exist,
            unused_apis=unused_apis,
        ),
        observe(resources),
    ]
    listed, snapshot = await gather_all(work)
    return listed, snapshot


async def verify_down(teardown: Teardown, cloud: Cloud) -> tuple[Remaining, ...]:
    """Read everything from the cloud again and report what still exists.

    The project is listed once more, so resources created in the meantime are included. A
    remaining bucket is reported with its size and monthly cost.
    """
    stack = teardown.stack
    existing, snapshot = await _list_and_observe(
        cloud, stack, teardown.resources, teardown.unused_apis
    )
    checked = [_remaining(resource, teardown.plan, snapshot) for resource in teardown.resources]
    addresses = {resource.address for resource in teardown.resources}
    for leftover in existing:
        if leftover.address not in addresses and _home_address(leftover, stack) not in addresses:
            checked.append(
                Remaining(leftover.address, "remains", "still exists", leftover.is_billable)
            )
    buckets = {resource.address: resource for resource in existing if resource.kind == "bucket"}
    return tuple(
        [
            await _with_bucket_size(remaining, buckets.get(remaining.address), cloud)
            for remaining in checked
        ]
    )


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


def _remaining(resource: Resource, plan: Plan, snapshot: Snapshot) -> Remaining:
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
    else:
        state = "deleted"
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
