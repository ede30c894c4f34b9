"""How much a project may have: asked of Service Usage and of Compute Engine, one call each.

The limits of Cloud TPU are read from Service Usage v1beta1 (consumerQuotaMetrics), which has no
official client. It knows a limit by its metric, `tpu.googleapis.com/tpu-v5s-litepod-preemptible`,
not by the id that refusals name, TPUV5sPreemptibleLitepodPerProjectPerZoneForTPUAPI: the two are
taken for one when they are made of the same words.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from tpuctl.catalog import AcceleratorType, QuotaLimit, quota_limits, region_of
from tpuctl.cloud.classification import ApiDisabled
from tpuctl.cloud.clients import Cloud
from tpuctl.engine.step import step
from tpuctl.errors import Conflict, NotFound, TpuctlError
from tpuctl.flows.inventory import list_resources
from tpuctl.model.events import Emit
from tpuctl.model.inventory import InventoryItem, with_requests
from tpuctl.model.plan import Action, Plan
from tpuctl.model.quota import QuotaReport, Region, compute_lines, tpu_lines
from tpuctl.model.quota_room import Room, rooms_of
from tpuctl.model.stack import Stack
from tpuctl.resources.composition import kind_of

__all__ = [
    "Limits",
    "adds_nodes",
    "name_words",
    "read_limits",
    "read_region",
    "read_room",
    "report_of",
]

TIMEOUT_SECONDS = 15.0  # a plan waits no longer for what only informs
MAX_PAGES = 20
PREEMPTIBLE_CAPACITY = ("spot", "preemptible", "flex-start")
UNLIMITED = -1
WORD = re.compile(r"V\d+[A-Za-z]|[A-Z][a-z]+")  # TPUV5sPreemptibleLitepod: V5s, Preemptible, …
LIMIT = re.compile(r"TPU(\w+)PerProjectPer(?:Zone|Region)ForTPUAPI")


@dataclass(frozen=True)
class Limits:
    """What Service Usage told, by the id of the limit and the place; or why it did not."""

    allowed: Mapping[tuple[str, str], float | None] = field(default_factory=dict)
    problem: str = ""


async def read_limits(stack: Stack, cloud: Cloud) -> Limits:
    """The limits that the stack's nodes count against in each of its zones. Raises nothing."""
    limits = quota_limits(stack.accelerator, stack.file.tpu.capacity in PREEMPTIBLE_CAPACITY)
    try:
        return Limits(await _limits(cloud, stack.project, limits, stack.zones))
    except TpuctlError as error:
        return Limits(problem=f"quota of Cloud TPU could not be read: {_reason(error)}")


async def _limits(
    cloud: Cloud, project: str, limits: Iterable[QuotaLimit], zones: Iterable[str]
) -> dict[tuple[str, str], float | None]:
    """How much is allowed, by the id of the limit and the place. Raises TpuctlError."""
    path = f"/v1beta1/projects/{quote(project)}/services/tpu.googleapis.com"

    def list_metrics(**options: Any) -> list[Any]:
        metrics: list[Any] = []
        query: dict[str, str] = {}
        for _ in range(MAX_PAGES):
            answer = cloud.client("rest").call(
                "GET", "serviceusage", f"{path}/consumerQuotaMetrics", query=query, **options
            )
            metrics += answer.get("metrics", [])
            if not answer.get("nextPageToken"):
                break
            query = {"pageToken": answer["nextPageToken"]}
        return metrics

    try:
        metrics = await cloud.call("the quota of Cloud TPU", list_metrics, timeout=TIMEOUT_SECONDS)
    except Conflict as error:  # Service Usage says it by a status of its own
        if "is not enabled" not in str(error):
            raise
        raise ApiDisabled(
            "API not enabled",
            f"the quota of Cloud TPU: tpu.googleapis.com is not enabled in project {project}",
            hint="Enable it; then there is a quota to look at:\n"
            f"    gcloud services enable tpu.googleapis.com --project={project}",
        ) from error
    return dict(_allowed(metrics, limits, tuple(zones)))


async def read_room(
    cloud: Cloud, accelerator: AcceleratorType, zones: Iterable[str], emit: Emit
) -> tuple[tuple[Room, ...], str]:
    """How many nodes of a type each zone has quota for; and why addresses are not counted in it.

    Raises TpuctlError where the limits of Cloud TPU, or what counts against them, may not be read.
    """
    places = tuple(zones)
    limits = [limit for spot in (False, True) for limit in quota_limits(accelerator, spot)]
    with step(emit, f"quota of {cloud.project}", "read") as progress:
        allowed, resources, regions = await asyncio.gather(
            _limits(cloud, cloud.project, limits, places),
            list_resources(
                cloud,
                cloud.project,
                include=lambda kind: kind.is_tpu,
                other_nodes=True,
                must_exist=True,
            ),
            _regions(cloud),
        )
        progress.result = f"{len(places)} zones"
    counted, problem = ({}, regions) if isinstance(regions, str) else (regions, "")
    return rooms_of(accelerator, places, with_requests(resources), allowed, counted), problem


async def _regions(cloud: Cloud) -> dict[str, Region] | str:
    """What Compute Engine allows in every region, or why it does not say. Raises nothing."""

    def list_regions(**options: Any) -> list[Any]:
        return list(cloud.client("regions").list(project=cloud.project, **options))

    try:
        regions = await cloud.call(
            "the quota of every region", list_regions, timeout=TIMEOUT_SECONDS
        )
    except TpuctlError as error:
        return f"quota of Compute Engine could not be read: {_reason(error)}"
    return {
        region.name: Region(
            region.name, {each.metric: (each.limit, each.usage) for each in region.quotas}
        )
        for region in regions
    }


async def read_region(stack: Stack, cloud: Cloud) -> Region | str:
    """What Compute Engine allows in the region in use, or why it does not say. Raises nothing."""
    client = cloud.client("regions")
    try:
        region = await cloud.call(
            f"the quota of {stack.region}",
            client.get,
            project=stack.project,
            region=stack.region,
            timeout=TIMEOUT_SECONDS,
        )
    except TpuctlError as error:
        return f"quota of Compute Engine could not be read: {_reason(error)}"
    return Region(
        stack.region, {quota.metric: (quota.limit, quota.usage) for quota in region.quotas}
    )


def report_of(
    stack: Stack,
    plan: Plan,
    resources: Iterable[InventoryItem],
    limits: Limits,
    region: Region | str,
) -> QuotaReport:
    """What the plan counts against. `found` has every node and request of the project."""
    unread = [limits.problem] if limits.problem else []
    adds = adds_nodes(plan)
    lines = list(tpu_lines(stack, plan, resources, limits.allowed, adds_nodes=adds))
    if isinstance(region, str):
        unread.append(region)
    else:
        lines += compute_lines(stack, plan, region, adds_nodes=adds)
    return QuotaReport(tuple(lines), tuple(unread))


def adds_nodes(plan: Plan) -> bool:
    """Whether the plan makes nodes, or asks for some."""
    return any(change.action is Action.CREATE and kind_of(change.address).is_tpu for change in plan)


def name_words(name: str) -> frozenset[str]:
    """What a limit's id or a metric's name is made of, in whatever order."""
    match = LIMIT.fullmatch(name)
    if match is not None:
        return frozenset(word.lower() for word in WORD.findall(match[1]))
    return frozenset(name.rpartition("/")[2].removeprefix("tpu-").split("-"))


def _allowed(
    metrics: Iterable[Any], limits: Iterable[QuotaLimit], zones: Iterable[str]
) -> Iterable[tuple[tuple[str, str], float | None]]:
    by_words = {name_words(metric.get("metric", "")): metric for metric in metrics}
    for limit in limits:
        metric = by_words.get(name_words(limit.id), {})
        for described in metric.get("consumerQuotaLimits", ()):
            if f"{{{limit.scope}}}" not in described.get("unit", ""):
                continue
            for zone in zones:
                place = zone if limit.scope == "zone" else region_of(zone)
                amount = _effective(described.get("quotaBuckets", ()), limit.scope, place)
                if amount is not None:
                    yield (limit.id, place), None if amount == UNLIMITED else amount


def _effective(buckets: Iterable[Any], scope: str, place: str) -> int | None:
    """Of the bucket for the place, else of the one for everywhere. What is left out is zero."""
    general = None
    for bucket in buckets:
        dimensions = bucket.get("dimensions", {})
        if dimensions == {scope: place}:
            return int(bucket.get("effectiveLimit", 0))
        if not dimensions:
            general = int(bucket.get("effectiveLimit", 0))
    return general


def _reason(error: TpuctlError) -> str:
    if isinstance(error, ApiDisabled | NotFound) or "is not enabled" in str(error):
        return "its API is not enabled yet"
    return error.diagnostics[0].summary[:1].lower() + error.diagnostics[0].summary[1:]
