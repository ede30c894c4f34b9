"""List the resources of stacks in a project, in every zone and of every kind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from tpuctl.catalog import Api
from tpuctl.cloud.classification import ApiDisabled
from tpuctl.cloud.clients import Cloud
from tpuctl.errors import Denied, NotFound, TpuctlError, Usage
from tpuctl.model.inventory import InventoryItem, ResourceKind
from tpuctl.model.stack import Stack
from tpuctl.model.status import NodeStatus
from tpuctl.resources.base import CloudKind, Query, SharedLists
from tpuctl.resources.composition import KINDS
from tpuctl.resources.node_lifecycle import NodeLifecycle
from tpuctl.resources.project import is_active

__all__ = ["is_tpu_of", "list_nodes", "list_resources"]


async def list_resources(
    cloud: Cloud,
    project: str,
    *,
    stack: str | None = None,
    include: Callable[[type[ResourceKind]], bool] | None = None,
    other_nodes: bool = False,
    must_exist: bool = False,
    unused_apis: Collection[Api] = (),
    on_error: Callable[[type[CloudKind], TpuctlError], None] | None = None,
) -> list[InventoryItem]:
    """List the resources of one stack or all stacks, of the kinds that `include` accepts.

    All kinds are listed in parallel. `other_nodes` adds nodes and requests that no stack created:
    they use the same quota. A disabled API counts as an empty list, and so does a missing project
    unless it `must_exist`, which raises NotFound. Raises Conflict for a project that is being
    deleted. Raises the error of a kind that cannot be listed, or passes it to `on_error`, and lists
    the others. Kinds of `unused_apis`, from which the stack cannot have anything, need no
    permission.
    """
    kinds = [
        kind for kind in KINDS if not kind.unlisted_reason and (include is None or include(kind))
    ]
    answers = await _list_kinds(cloud, project, stack, kinds)
    is_there = any(isinstance(answer, list) for answer in answers.values())
    if any(isinstance(answer, Denied) for answer in answers.values()):
        is_there |= await is_active(cloud, project)
    if is_there:
        # In a project that is just being created, early listings were denied: list those again.
        denied = [kind for kind, answer in answers.items() if isinstance(answer, Denied)]
        answers |= await _list_kinds(cloud, project, stack, denied)
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


async def list_nodes(cloud: Cloud, stack: Stack) -> list[NodeStatus]:
    """The stack's nodes in every zone, by label."""
    resources = await list_resources(
        cloud,
        stack.project,
        stack=stack.name,
        include=lambda kind: issubclass(kind, NodeLifecycle) and is_tpu_of(kind, stack),
    )
    return [resource.node for resource in resources if resource.node is not None]


async def _list_kinds(
    cloud: Cloud, project: str, stack: str | None, kinds: Sequence[type[CloudKind]]
) -> dict[type[CloudKind], list[InventoryItem] | TpuctlError]:
    lists = SharedLists()
    answers = await asyncio.gather(
        *(_list_kind(Query(cloud, project, stack, lists=lists), kind) for kind in kinds)
    )
    return dict(zip(kinds, answers, strict=True))


async def _list_kind(query: Query, kind: type[CloudKind]) -> list[InventoryItem] | TpuctlError:
    """List one kind, or return the error: whether it means that the project does not exist, only
    the answers for the other kinds can tell. Google answers both with the same message."""

    def list_kind(**options: Any) -> list[InventoryItem]:
        return list(kind.list_all(replace(query, options=options)))

    try:
        return await query.cloud.call(f"the list of every {kind.kind}", list_kind)
    except ApiDisabled:
        return []
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
