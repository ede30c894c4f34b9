"""List the resources of stacks in a project, in every zone and of every kind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from tpuctl.catalog import Api, region_of
from tpuctl.cloud.clients import Cloud
from tpuctl.errors import ApiDisabled, Denied, NotFound, TpuctlError, Transient, Usage
from tpuctl.model.stack.stack import Stack
from tpuctl.model.status.inventory import InventoryItem, ResourceKind, with_requests
from tpuctl.model.status.status import NodeStatus
from tpuctl.resources.base import CloudKind, Query, SharedLists
from tpuctl.resources.composition import KINDS
from tpuctl.resources.project.bucket import Bucket
from tpuctl.resources.project.project import is_active
from tpuctl.resources.project.stack_record import Record
from tpuctl.resources.tpu.node_lifecycle import NodeLifecycle
from tpuctl.resources.tpu.queued_resource import QueuedNodes


async def list_resources(
    cloud: Cloud,
    project: str,
    *,
    stack: str | None = None,
    include: Callable[[type[CloudKind]], bool] | None = None,
    other_nodes: bool = False,
    must_exist: bool = False,
    unused_apis: Collection[Api] = (),
    zones: Collection[str] | None = None,
    on_error: Callable[[type[CloudKind], TpuctlError], None] | None = None,
) -> list[InventoryItem]:
    """List the resources of one stack or all stacks, of the kinds that `include` accepts.

    All kinds are listed in parallel. `other_nodes` adds nodes and requests that no stack created:
    they use the same quota. A missing project counts as an empty list unless it `must_exist`, which
    raises NotFound. Raises Conflict for a project that is being deleted. Raises the error of a kind
    that cannot be listed, as its API is disabled for example, or passes it to `on_error`, and lists
    the others. So it does for zones that Google could not reach, of those that matter (`zones`,
    default: all), whose kinds are listed without them. Kinds of `unused_apis`, from which the stack
    cannot have anything, need no permission.
    """
    kinds = [
        kind for kind in KINDS if not kind.unlisted_reason and (include is None or include(kind))
    ]
    unreached: dict[type[CloudKind], set[str]] = {}
    answers = await _list_kinds(cloud, project, stack, kinds, unreached)
    is_there = any(isinstance(answer, list | ApiDisabled) for answer in answers.values())
    denied = [
        kind
        for kind, answer in answers.items()
        if isinstance(answer, Denied) and not isinstance(answer, ApiDisabled)
    ]
    if denied:
        is_there |= await is_active(cloud, project)
    if is_there:
        # In a project that is just being created, early listings were denied: list those again.
        answers |= await _list_kinds(cloud, project, stack, denied, unreached)
    elif must_exist and any(isinstance(answer, Denied | Usage) for answer in answers.values()):
        raise NotFound(
            "Project not found",
            f"project {project} does not exist, or you have no access to it",
            hint="List your projects:\n    gcloud projects list",
        )
    errors = {
        kind: answer
        for kind, answer in answers.items()
        if isinstance(answer, TpuctlError)
        and not (isinstance(answer, Denied) and kind.api in unused_apis)
        and not (
            _is_project_unknown(answer, project)
            or (not is_there and _is_denied(kind, answer, project))
        )
    }
    places = None if zones is None else {*zones, *map(region_of, zones)}
    for kind, names in unreached.items():
        if missing := sorted(names if places is None else names & places):
            errors[kind] = Transient(
                "Zones not reached",
                f"the list of every {kind.kind}: Google could not reach {', '.join(missing)}",
                hint="What exists there is unknown. Try again later.",
            )
    for kind, error in errors.items():
        if on_error is None:
            raise error
        on_error(kind, error)
    return [
        resource
        for listed in answers.values()
        if isinstance(listed, list)
        for resource in listed
        if (other_nodes and resource.kind_class.is_tpu)
        or (resource.stack and stack in (None, resource.stack))
    ]


def is_tpu_of(kind: type[ResourceKind], stack: Stack) -> bool:
    """Whether a kind is a TPU of one of the APIs that may sell the stack's.

    A controller may list no others.
    """
    return kind.is_tpu and kind.api in stack.apis


async def list_tpus(stack: Stack, cloud: Cloud) -> list[InventoryItem]:
    """A stack's TPUs and requests for one, in all zones."""
    return await list_resources(
        cloud,
        stack.project,
        stack=stack.name,
        include=lambda kind: is_tpu_of(kind, stack),
        zones=stack.zones,
    )


async def list_nodes(cloud: Cloud, stack: Stack) -> list[NodeStatus]:
    """The stack's nodes in every zone, by label.

    Of several alternatives, with the requests for them, which tell the capacity.
    """
    has_alternatives = len(stack.alternatives) > 1
    kinds = (NodeLifecycle, QueuedNodes) if has_alternatives else (NodeLifecycle,)
    resources = await list_resources(
        cloud,
        stack.project,
        stack=stack.name,
        include=lambda kind: issubclass(kind, kinds) and is_tpu_of(kind, stack),
        zones=stack.zones,
    )
    return [
        replace(resource.node, capacity=resource.capacity if has_alternatives else None)
        for resource in with_requests(resources)
        if resource.node is not None
    ]


def stack_on(node: NodeStatus, stack: Stack) -> Stack:
    """The stack with the alternative, and in the place, of a node that exists."""
    place = stack.place_of(node.zone, node.api, node.accelerator_type, node.capacity, (node.name,))
    return stack.at(place)


async def was_brought_up(stack: Stack, cloud: Cloud, items: Iterable[InventoryItem]) -> bool:
    """Whether anything suggests that the stack has been up, so that a disabled API may hide more of
    it: an item other than its bucket, which rehearsals have, too, or what `up` left in its record
    in that bucket, where `down` counts itself."""
    if any(item.kind != Bucket.kind for item in items):
        return True
    try:
        record = await Record(stack, cloud).read()
        return record is not None and bool(record.grants or record.capacity)
    except TpuctlError:
        return True  # unknown


async def _list_kinds(
    cloud: Cloud,
    project: str,
    stack: str | None,
    kinds: Sequence[type[CloudKind]],
    unreached: dict[type[CloudKind], set[str]],
) -> dict[type[CloudKind], list[InventoryItem] | TpuctlError]:
    """`unreached` receives the zones and regions that lists left out."""
    lists = SharedLists()
    queries = [Query(cloud, project, stack, lists=lists) for _ in kinds]
    answers = await asyncio.gather(*map(_list_kind, queries, kinds))
    unreached |= {
        kind: query.unreached for kind, query in zip(kinds, queries, strict=True) if query.unreached
    }
    return dict(zip(kinds, answers, strict=True))


async def _list_kind(query: Query, kind: type[CloudKind]) -> list[InventoryItem] | TpuctlError:
    """List one kind, or return the error: whether it means that the project does not exist, only
    the answers for the other kinds can tell. Google answers both with the same message."""

    def list_kind(**options: Any) -> list[InventoryItem]:
        return list(kind.list_all(replace(query, options=options)))

    try:
        return await query.cloud.call(f"the list of every {kind.kind}", list_kind)
    except TpuctlError as error:
        return error


def _is_project_unknown(error: TpuctlError, project: str) -> bool:
    """Whether it says that the project does not exist; also in the words of Cloud Storage."""
    return isinstance(error, NotFound) or (
        isinstance(error, Usage) and f"Unknown project id: {project}" in str(error)
    )


def _is_denied(kind: type[CloudKind], error: TpuctlError, project: str) -> bool:
    """Whether a missing project may be the cause: Google answers as if access were denied."""
    in_doubt = ("or it may not exist", f"resource project {project}")
    return isinstance(error, Denied) and (
        not kind.is_billable or any(words in str(error) for words in in_doubt)
    )
