"""The quota of a project, read from Service Usage and Compute Engine, one request each.

The TPU limits of both APIs are read from Service Usage v1beta1 (consumerQuotaMetrics), which has no
official client. It names a limit by its metric. That of Compute Engine is its name in errors in
lower case, `compute.googleapis.com/tpus_per_tpu_family`, so these few are read by name. That of
Cloud TPU, `tpu.googleapis.com/tpu-v5s-litepod-preemptible`, is not the id in quota errors,
TPUV5sPreemptibleLitepodPerProjectPerZoneForTPUAPI: the two are matched by the words that they
consist of.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any
from urllib.parse import quote

from tpuctl.catalog import (
    TPU_MACHINE_FAMILIES,
    AcceleratorType,
    Api,
    QuotaLimit,
    apis_of,
    quota_limits,
    region_of,
)
from tpuctl.cloud.clients import Cloud
from tpuctl.engine.step import step
from tpuctl.errors import ApiDisabled, Conflict, NotFound, TpuctlError
from tpuctl.flows.machines.inventory import list_resources
from tpuctl.flows.stack.live_catalog import list_aggregated
from tpuctl.flows.stack.zones import candidates_to_try
from tpuctl.model.capacity.quota import (
    QuotaReport,
    Region,
    alternative_lines,
    blocking_lines,
    compute_lines,
    other_pool,
    tpu_lines,
)
from tpuctl.model.capacity.quota_room import Room, rooms_of
from tpuctl.model.events import Emit
from tpuctl.model.plan import Action, Plan
from tpuctl.model.stack.stack import Stack
from tpuctl.model.status.inventory import InventoryItem, ResourceKind, with_requests
from tpuctl.model.text.names import STACK_LABEL
from tpuctl.polling import gather_all
from tpuctl.resources.composition import kind_of
from tpuctl.resources.tpu.queued_resource import QueuedNodes
from tpuctl.resources.tpu.tpu_instance import TpuInstance
from tpuctl.resources.tpu.tpu_machine_spec import accelerator_name, capacity_of, machine_state

TIMEOUT_SECONDS = 15.0  # short, since the report is only informative
MAX_PAGES = 20
PREEMPTIBLE_CAPACITY = ("spot", "preemptible", "flex-start")
UNLIMITED = -1
QUOTA_NAMES: Mapping[Api, str] = {
    "tpu": "quota of Cloud TPU",
    "compute": "TPU quota of Compute Engine",
}
STOPPED = "TERMINATED"  # instances that use no quota
WORD = re.compile(r"V\d+[A-Za-z]|[A-Z][a-z]+")  # TPUV5sPreemptibleLitepod: V5s, Preemptible, …
LIMIT = re.compile(r"TPU(\w+)PerProjectPer(?:Zone|Region)ForTPUAPI")


@dataclass(frozen=True)
class Limits:
    """Limits from Service Usage, by limit id and location; or why they could not be read.

    `other_nodes` has instances with TPUs that the stack did not create: they use the same pools.
    """

    allowed: Mapping[tuple[str, str], float | None] = field(default_factory=dict)
    problem: str = ""
    other_nodes: Sequence[InventoryItem] = ()


async def read_limits(stack: Stack, cloud: Cloud) -> Limits:
    """The limits that apply to the stack's nodes in each of its zones, at every API that sells
    them. Never raises."""
    stacks = list(stack.by_alternative)
    apis = dict.fromkeys(api for each in stacks for api in apis_of(each.accelerator))

    def limits_of(api: Api) -> tuple[QuotaLimit, ...]:
        limits = dict.fromkeys(limit for each in stacks for limit in _limits_of(each, api))
        families = Counter(limit.id for limit in limits)  # what was read does not tell them apart
        return tuple(limit for limit in limits if families[limit.id] == 1)

    async def read_others() -> Sequence[InventoryItem]:
        generations = {each.accelerator.generation: each.accelerator for each in stacks}
        try:
            others = await gather_all(
                _other_instances(cloud, accelerator, stack.name)
                for accelerator in generations.values()
            )
        except TpuctlError:
            return ()
        return [*chain.from_iterable(others)]

    answers, others = await asyncio.gather(
        asyncio.gather(
            *(_limits(cloud, api, limits_of(api), stack.zones) for api in apis),
            return_exceptions=True,
        ),
        read_others(),
    )
    allowed: dict[tuple[str, str], float | None] = {}
    problem = ""
    for api, answer in zip(apis, answers, strict=True):
        if isinstance(answer, TpuctlError):
            if api == stack.api:
                problem = f"{QUOTA_NAMES[api]} could not be read: {_reason(answer)}"
        elif isinstance(answer, BaseException):
            raise answer
        else:
            allowed |= answer
    return Limits(allowed, problem, others)


def _limits_of(stack: Stack, api: Api) -> Iterator[QuotaLimit]:
    capacity = stack.file.tpu.capacity
    has_fallback = api == "compute" and capacity == "flex-start"
    for spot in (True, False) if has_fallback else (capacity in PREEMPTIBLE_CAPACITY,):
        yield from quota_limits(stack.accelerator, spot, api)


async def _other_instances(
    cloud: Cloud, accelerator: AcceleratorType, stack: str | None = None
) -> list[InventoryItem]:
    """The instances with TPUs of this generation that this stack did not create, or no stack.

    The inventory has the others. Raises TpuctlError.
    """
    family = TPU_MACHINE_FAMILIES.get(accelerator.generation)
    if family is None:
        return []
    query = {"filter": f'machineType eq ".*/{family}-.*"'}
    return [
        InventoryItem(
            TpuInstance,
            row["name"],
            "",
            zone,
            machine_state(row["status"]),
            accelerator_name(row["machineType"].rpartition("/")[2]),
            capacity=capacity_of(row),
        )
        async for zone, row in list_aggregated(cloud, "instances", query)
        if (owner := row.get("labels", {}).get(STACK_LABEL)) is None or stack not in (None, owner)
        if row["status"] != STOPPED
    ]


async def _limits(
    cloud: Cloud, api: Api, limits: Sequence[QuotaLimit], zones: Iterable[str]
) -> dict[tuple[str, str], float | None]:
    """The allowed amounts by limit id and location. Raises TpuctlError."""
    service = f"{api}.googleapis.com"
    path = f"/v1beta1/projects/{quote(cloud.project)}/services/{service}/consumerQuotaMetrics"

    def list_metrics(**options: Any) -> list[Any]:
        pages = cloud.client("rest").pages("serviceusage", path, **options)
        metrics = (page.get("metrics", ()) for page in islice(pages, MAX_PAGES))
        return [*chain.from_iterable(metrics)]

    async def read(name: str, method: Callable[..., Any], *arguments: str) -> Any:
        try:
            return await cloud.call(f"the {name}", method, *arguments, timeout=TIMEOUT_SECONDS)
        except Conflict as error:  # Service Usage reports it with another status
            if "is not enabled" not in str(error):
                raise
            raise ApiDisabled(
                "API not enabled",
                f"the {name}: {service} is not enabled in project {cloud.project}",
                hint=f"Enable it:\n    gcloud services enable {service} --project={cloud.project}",
            ) from error

    async def read_metric(metric: str) -> Any:
        where = f"{path}/{quote(metric, safe='')}"
        try:
            rest = cloud.client("rest")
            return await read(QUOTA_NAMES[api], rest.call, "GET", "serviceusage", where)
        except NotFound:  # a project whose quota has no such metric
            return {}

    if api == "tpu":
        metrics = await read(QUOTA_NAMES[api], list_metrics)
    else:
        names = dict.fromkeys(metric_of(limit) for limit in limits)
        metrics = await asyncio.gather(*map(read_metric, names))
    return dict(allowed_amounts(metrics, limits, tuple(zones)))


async def read_room(
    cloud: Cloud, accelerator: AcceleratorType, zones: Iterable[str], emit: Emit
) -> tuple[tuple[Room, ...], tuple[str, ...], str]:
    """How many nodes of a type each zone has quota for at each API; which quota could not be read;
    and why addresses are not considered, if so.

    Raises TpuctlError if the limits of no API or the usage of TPUs can be read.
    """
    places = tuple(zones)
    apis = apis_of(accelerator)

    async def read_all() -> tuple[dict[tuple[str, str], float | None], list[str]]:
        answers = await asyncio.gather(
            *(_limits(cloud, api, _all_limits(accelerator, api), places) for api in apis),
            return_exceptions=True,
        )
        allowed: dict[tuple[str, str], float | None] = {}
        problems: list[str] = []
        for api, answer in zip(apis, answers, strict=True):
            if isinstance(answer, TpuctlError) and len(problems) < len(apis) - 1:
                problems.append(f"{QUOTA_NAMES[api]} could not be read: {_reason(answer)}")
            elif isinstance(answer, BaseException):
                raise answer
            else:
                allowed |= answer
        return allowed, problems

    def ignore_disabled(kind: type[ResourceKind], error: TpuctlError) -> None:
        """Its limits cannot be read either, which is reported."""
        if not isinstance(error, ApiDisabled):
            raise error

    with step(emit, f"quota of {cloud.project}", "read") as progress:
        (allowed, problems), others, resources, regions = await asyncio.gather(
            read_all(),
            _other_instances(cloud, accelerator),
            list_resources(
                cloud,
                cloud.project,
                include=lambda kind: kind.is_tpu,
                other_nodes=True,
                must_exist=True,
                zones=places,
                on_error=ignore_disabled,
            ),
            _regions(cloud),
        )
        progress.result = f"{len(places)} zones"
    counted, unread = ({}, regions) if isinstance(regions, str) else (regions, "")
    items = [*with_requests(resources), *others]
    rooms = rooms_of(accelerator, places, items, allowed, counted)
    return rooms, tuple(problems), unread


def _all_limits(accelerator: AcceleratorType, api: Api) -> list[QuotaLimit]:
    return [limit for spot in (False, True) for limit in quota_limits(accelerator, spot, api)]


async def _regions(cloud: Cloud) -> dict[str, Region] | str:
    """Compute Engine quota of every region, or why it could not be read. Never raises."""

    def list_regions(**options: Any) -> list[Any]:
        path = f"/compute/v1/projects/{cloud.project}/regions"
        pages = cloud.client("rest").pages("compute", path, **options)
        return [*chain.from_iterable(page.get("items", ()) for page in pages)]

    try:
        regions = await cloud.call(
            "the quota of every region", list_regions, timeout=TIMEOUT_SECONDS
        )
    except TpuctlError as error:
        return f"quota of Compute Engine could not be read: {_reason(error)}"
    return {region["name"]: _region(region) for region in regions}


def _region(region: Mapping[str, Any]) -> Region:
    """A region of Compute Engine, from its JSON."""
    quotas = region.get("quotas", ())
    return Region(
        region["name"],
        {quota["metric"]: (quota.get("limit", 0.0), quota.get("usage", 0.0)) for quota in quotas},
    )


async def read_region(stack: Stack, cloud: Cloud) -> Region | str:
    """Compute Engine quota of the stack's region, or why it could not be read. Never raises."""
    try:
        region = await cloud.call(
            f"the quota of {stack.region}",
            cloud.client("rest").call,
            "GET",
            "compute",
            f"/compute/v1/projects/{stack.project}/regions/{stack.region}",
            timeout=TIMEOUT_SECONDS,
        )
    except TpuctlError as error:
        return f"quota of Compute Engine could not be read: {_reason(error)}"
    return _region(region)


def report_of(
    stack: Stack,
    plan: Plan,
    resources: Iterable[InventoryItem],
    limits: Limits,
    region: Region | str,
) -> QuotaReport:
    """The quota that the plan uses. `resources` has every node and request of the project."""
    unread = [limits.problem] if limits.problem else []
    new_nodes, items = count_new_nodes(stack, plan), [*resources, *limits.other_nodes]
    candidates = candidates_to_try(stack, plan)
    lines = list(tpu_lines(stack, plan, items, limits.allowed, new_nodes=new_nodes))
    known_region = None
    if isinstance(region, str):
        unread.append(region)
    else:
        known_region = region
        lines += compute_lines(stack, plan, region, new_nodes=new_nodes)
    return QuotaReport(
        tuple(lines),
        tuple(unread),
        other_pool(stack, plan, items, limits.allowed),
        blocking_lines(
            stack,
            plan,
            items,
            limits.allowed,
            known_region,
            candidates,
            new_nodes=new_nodes,
        ),
        alternative_lines(stack, plan, items, limits.allowed, candidates) if new_nodes else (),
    )


def count_new_nodes(stack: Stack, plan: Plan) -> int:
    """How many nodes the plan creates or requests; of a race, in each place."""
    created = [
        change.address
        for change in plan
        if change.action is Action.CREATE and kind_of(change.address).is_tpu
    ]
    has_all = any(
        kind_of(address) is QueuedNodes or address.count("/") > 1  # with its zone, in a race
        for address in created
    )
    return len(stack.nodes) if has_all else len(created)


def name_words(name: str) -> frozenset[str]:
    """The words in a limit id or a metric name, in any order."""
    match = LIMIT.fullmatch(name)
    if match is not None:
        return frozenset(word.lower() for word in WORD.findall(match[1]))
    return frozenset(name.rpartition("/")[2].removeprefix("tpu-").split("-"))


def metric_of(limit: QuotaLimit) -> str:
    """The full name of the metric of a limit of Compute Engine."""
    return f"compute.googleapis.com/{limit.metric.lower()}"


def allowed_amounts(
    metrics: Iterable[Any], limits: Iterable[QuotaLimit], zones: Iterable[str]
) -> Iterable[tuple[tuple[str, str], float | None]]:
    """How much each limit allows in the zones or their regions, from metrics of Service Usage.

    None is no bound; what the metrics do not say is left out.
    """
    by_name: dict[Any, Any] = {}
    for metric in metrics:
        name = metric.get("metric", "")
        by_name[name], by_name[name_words(name)] = metric, metric
    for limit in limits:
        name = name_words(limit.id) if limit.api == "tpu" else metric_of(limit)
        for described in by_name.get(name, {}).get("consumerQuotaLimits", ()):
            if f"{{{limit.scope}}}" not in described.get("unit", ""):
                continue
            for zone in zones:
                place = zone if limit.scope == "zone" else region_of(zone)
                amount = _effective(described.get("quotaBuckets", ()), limit.dimensions(place))
                if amount is not None:
                    yield (limit.id, place), None if amount == UNLIMITED else amount


def _effective(buckets: Iterable[Any], dimensions: Mapping[str, str]) -> int | None:
    """The limit of the quota bucket with these dimensions, otherwise of the bucket with most of
    them: the default bucket has none. An omitted limit is zero."""
    matching = [
        bucket for bucket in buckets if bucket.get("dimensions", {}).items() <= dimensions.items()
    ]
    if not matching:
        return None
    best = max(matching, key=lambda bucket: len(bucket.get("dimensions", {})))
    return int(best.get("effectiveLimit", 0))


def _reason(error: TpuctlError) -> str:
    if isinstance(error, ApiDisabled | NotFound) or "is not enabled" in str(error):
        return "the API is not enabled yet"
    return error.diagnostics[0].summary[:1].lower() + error.diagnostics[0].summary[1:]
