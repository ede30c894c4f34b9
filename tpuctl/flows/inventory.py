"""Looking through a whole project for what stacks made, in every zone and of every kind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from tpuctl.cloud.classification import ApiDisabled
from tpuctl.cloud.clients import Cloud
from tpuctl.errors import Denied, NotFound, TpuctlError, Usage
from tpuctl.model.inventory import InventoryItem, ResourceKind
from tpuctl.model.status import NodeStatus
from tpuctl.resources.base import CloudKind, Query
from tpuctl.resources.composition import KINDS
from tpuctl.resources.node_lifecycle import NodeLife

__all__ = ["list_nodes", "list_resources"]


async def list_resources(
    cloud: Cloud,
    project: str,
    *,
    stack: str | None = None,
    include: Callable[[type[ResourceKind]], bool] | None = None,
    other_nodes: bool = False,
    must_exist: bool = False,
    on_denied: Callable[[TpuctlError], None] | None = None,
) -> list[InventoryItem]:
    """Everything of one stack, or of all; `of` all kinds, or of some. One round of calls, at once.

    With `others` also the project's further nodes and requests, whoever made them: they count
    against the same quota. What belongs to an API that is not enabled is not there; nor is what
    belongs to a project that is not there, unless it `must_exist`: NotFound then. Raises Denied
    where something may not be looked at; `unseen` is told instead if it costs nothing anyway.
    """
    kinds = [kind for kind in KINDS if not kind.unlisted and (include is None or include(kind))]
    answers = await _list_kinds(cloud, project, stack, kinds)
    if any(isinstance(answer, list) for answer in answers.values()):  # the project is there
        # One that was being created was denied to the listings that came too early.
        denied = [kind for kind, answer in answers.items() if isinstance(answer, Denied)]
        answers |= await _list_kinds(cloud, project, stack, denied)
        for kind, answer in answers.items():
            if isinstance(answer, Denied):
                if on_denied is None or kind.is_billable:
                    raise answer
                on_denied(answer)
    elif must_exist and any(isinstance(answer, Denied | Usage) for answer in answers.values()):
        raise NotFound(
            "No such project",
            f"there is no project {project}, or nothing of it may be seen",
            hint="See which there are with\n    gcloud projects list",
        )
    return [
        resource
        for listed in answers.values()
        if isinstance(listed, list)
        for resource in listed
        if (other_nodes and resource.kind_class.is_tpu)
        or (resource.stack and stack in (None, resource.stack))
    ]


async def list_nodes(cloud: Cloud, project: str, stack: str) -> list[NodeStatus]:
    """The stack's nodes in every zone, by label."""
    resources = await list_resources(
        cloud, project, stack=stack, include=lambda kind: issubclass(kind, NodeLife)
    )
    return [resource.node for resource in resources if resource.node is not None]


async def _list_kinds(
    cloud: Cloud, project: str, stack: str | None, kinds: Sequence[type[CloudKind]]
) -> dict[type[CloudKind], list[InventoryItem] | TpuctlError]:
    answers = await asyncio.gather(*(_list_kind(cloud, project, stack, kind) for kind in kinds))
    return dict(zip(kinds, answers, strict=True))


async def _list_kind(
    cloud: Cloud, project: str, stack: str | None, kind: type[CloudKind]
) -> list[InventoryItem] | TpuctlError:
    """What there is of a kind. An error for a refusal, of which the other kinds tell whether it
    means that the project is absent: Google denies what is not there in the same words."""

    def list_kind(**options: Any) -> list[InventoryItem]:
        return list(kind.list_all(Query(cloud, project, stack, options)))

    try:
        return await cloud.call(f"the list of every {kind.kind}", list_kind)
    except NotFound as error:
        return error
    except ApiDisabled:
        return []
    except Usage as error:
        if f"Unknown project id: {project}" in str(error):  # in the words of Cloud Storage
            return error
        raise
    except Denied as error:
        if "or it may not exist" in str(error) or f"resource project {project}" in str(error):
            return error
        if not kind.is_billable:
            return error
        raise
