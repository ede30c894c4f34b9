"""`down`: take the stack away, in every zone, and prove what is left of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from tpuctl.catalog import HOURS_PER_MONTH
from tpuctl.cloud.clients import Cloud
from tpuctl.engine.planner import Snapshot, observe, plan_down
from tpuctl.engine.resource import Resource
from tpuctl.errors import NotFound, TpuctlError
from tpuctl.flows.apply import apply_plan
from tpuctl.flows.context import Context
from tpuctl.flows.inventory import look
from tpuctl.model.cost import storage_cost
from tpuctl.model.inventory import Found
from tpuctl.model.plan import Action, Plan
from tpuctl.model.stack import Stack
from tpuctl.model.status import Down, Holding, Remaining
from tpuctl.resources.composition import in_other_zones, resources_of
from tpuctl.resources.secret_grants import forgotten_secrets
from tpuctl.resources.stack_record import Record

__all__ = ["Teardown", "bucket_holding", "down", "prepare_down", "prove_down"]

MOST_OBJECTS = 20_000  # looked at to find a bucket's size: 20 pages
PAGE = 1000


@dataclass(frozen=True)
class Teardown:
    """What `down` is about to do, with everything of the stack in zones it no longer names."""

    stack: Stack
    plan: Plan
    resources: tuple[Resource, ...]


async def down(
    context: Context,
    *,
    delete_bucket: bool = False,
    confirm: Callable[[Teardown], None] | None = None,
) -> Down:
    """Take the stack away, then ask the cloud what is left of it.

    `confirm` sees the plan first and raises to refuse it. Raises NotFound where neither a stack
    file nor the project is there.
    """
    stack, cloud = context.stack, context.cloud
    teardown = await prepare_down(
        stack, cloud, delete_bucket=delete_bucket, must_exist=not context.has_file
    )
    if not teardown.plan.is_empty:
        if confirm is not None:
            confirm(teardown)
        with suppress(NotFound):  # without a bucket nobody can be told
            await Record(stack, cloud).update(lambda it: it.with_down())
        await apply_plan(teardown.plan, teardown.resources, context.emit)
    return Down(await prove_down(teardown, cloud))


async def prepare_down(
    stack: Stack, cloud: Cloud, *, delete_bucket: bool = False, must_exist: bool = False
) -> Teardown:
    """What is to be taken away, after a look through the whole project for what is the stack's.

    Raises NotFound where the project is not there and `must_exist`.
    """
    resources = resources_of(stack, cloud, delete_bucket=delete_bucket)
    found = await look(cloud, stack.project, stack=stack.name, must_exist=must_exist)
    resources += in_other_zones(found, stack, cloud, resources, delete_bucket=delete_bucket)
    resources += await forgotten_secrets(stack, cloud, resources)
    return Teardown(stack, plan_down(resources, await observe(resources)), tuple(resources))


async def prove_down(teardown: Teardown, cloud: Cloud) -> tuple[Remaining, ...]:
    """Ask the cloud again for everything that was to go, and say what is still there.

    The project is looked through once more: what came into being meanwhile is told too. A bucket
    of the stack that is still there is told with its size and what it costs a month.
    """
    stack = teardown.stack
    snapshot: Snapshot = await observe(teardown.resources)
    proof = [_remaining(one, teardown.plan, snapshot) for one in teardown.resources]
    known = {one.address for one in teardown.resources}
    there = await look(cloud, stack.project, stack=stack.name)
    for found in there:
        if found.address not in known and _address_at_home(found, stack) not in known:
            proof.append(Remaining(found.address, "remains", "it is there", found.is_billable))
    buckets = {one.address: one for one in there if one.kind == "bucket"}
    return tuple([await _with_holding(one, buckets.get(one.address), cloud) for one in proof])


async def _with_holding(one: Remaining, bucket: Found | None, cloud: Cloud) -> Remaining:
    if bucket is None or one.state == "gone":
        return one
    try:
        holding = await bucket_holding(cloud, bucket.name)
    except TpuctlError:  # it may not be looked into, or has gone: that it was there is told
        return one
    per_hour = storage_cost(bucket.detail, holding.bytes).per_hour
    per_month = None if per_hour is None else per_hour * HOURS_PER_MONTH
    return replace(one, holding=holding, per_month=per_month)


def _address_at_home(found: Found, stack: Stack) -> str:
    return f"{found.kind}/{found.name}" if found.zone in ("", stack.zone) else found.address


def _remaining(one: Resource, plan: Plan, snapshot: Snapshot) -> Remaining:
    asked = plan.change(one.address)
    now = one.removal(snapshot[one.address])
    if now.is_work:
        state = "remains"
    elif now.action is Action.LEAVE and not asked.is_work and snapshot[one.address] is not None:
        state = "kept"
    else:
        state = "gone"
    return Remaining(one.address, state, now.because, one.is_billable)


async def bucket_holding(
    cloud: Cloud, bucket: str, *, most: int = MOST_OBJECTS, page: int = PAGE
) -> Holding:
    """How much a bucket holds, as far as so many objects tell. Raises what asking raises."""

    def sizes(**options: Any) -> tuple[int, int, bool]:
        found = cloud.client("storage").list_blobs(
            bucket, page_size=page, fields="items(name,size),nextPageToken", **options
        )
        total = count = 0
        for part in found.pages:
            for blob in part:
                total += blob.size or 0
                count += 1
            if count >= most:
                return total, count, found.next_page_token is None
        return total, count, True

    total, count, is_whole = await cloud.call(f"the size of gs://{bucket}", sizes)
    return Holding(total, count, is_whole)
