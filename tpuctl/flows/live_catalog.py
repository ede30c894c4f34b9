"""The live catalog of Cloud TPU: zones, and the types and versions that each zone lists."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tpuctl.cloud.clients import Cloud
from tpuctl.engine.step import step
from tpuctl.errors import TpuctlError
from tpuctl.model.events import Emit
from tpuctl.model.live_catalog import Listed

__all__ = ["CatalogList", "list_in_zones", "list_zones"]

CatalogList = Literal["types", "runtimes", "node versions"]
MAX_PARALLEL = 8
TIMEOUT_SECONDS = 30.0
PAGE_SIZE = 1000


@dataclass(frozen=True)
class _ListMethod:
    """A list method of an API client, and the name in each of its rows."""

    client: str
    method: str
    name: Callable[[Any], str]


LIST_METHODS: Mapping[CatalogList, _ListMethod] = {
    "types": _ListMethod("tpu", "list_accelerator_types", lambda row: str(row.type_)),
    "runtimes": _ListMethod("tpu", "list_runtime_versions", lambda row: str(row.version)),
    "node versions": _ListMethod(
        "tpu_v1", "list_tensor_flow_versions", lambda row: str(row.version)
    ),
}


async def list_zones(cloud: Cloud) -> tuple[str, ...]:
    """All zones of Cloud TPU, whatever they offer. Raises TpuctlError."""
    client = cloud.client("tpu")
    found: list[str] = []
    token = ""
    while True:
        request = {"name": f"projects/{cloud.project}", "page_size": PAGE_SIZE, "page_token": token}
        answer = await cloud.call(
            "the zones of Cloud TPU", client.list_locations, request, timeout=TIMEOUT_SECONDS
        )
        found += (location.location_id for location in answer.locations)
        token = answer.next_page_token
        if not token:
            return tuple(sorted(found))


async def list_in_zones(
    cloud: Cloud, listing: CatalogList, zones: Iterable[str], emit: Emit
) -> Listed:
    """The names that each zone lists; zones are queried in parallel.

    A zone that fails is reported in `unread`. Raises TpuctlError if all zones fail.
    """
    zone_names = tuple(zones)
    semaphore = asyncio.Semaphore(MAX_PARALLEL)
    answers: dict[str, frozenset[str] | TpuctlError] = {}
    where = zone_names[0] if len(zone_names) == 1 else f"{len(zone_names)} zones"
    with step(emit, f"{listing} in {where}", "find") as progress:

        async def query(zone: str) -> None:
            async with semaphore:
                try:
                    answers[zone] = await _list_zone(cloud, LIST_METHODS[listing], listing, zone)
                except TpuctlError as error:  # some zones are not open to every project
                    answers[zone] = error
            done = len(answers)
            progress.report(f"{done} of {len(zone_names)} zones", done / len(zone_names))

        await asyncio.gather(*(query(zone) for zone in zone_names))
        refusals = {z: answer for z, answer in answers.items() if isinstance(answer, TpuctlError)}
        if zone_names and len(refusals) == len(zone_names):
            raise next(iter(refusals.values()))
        names = {
            zone: listed for zone in zone_names if isinstance(listed := answers[zone], frozenset)
        }
        progress.result = f"{len(frozenset().union(*names.values()))} listed"
    return Listed(names, {zone: _reason(error) for zone, error in sorted(refusals.items())})


async def _list_zone(
    cloud: Cloud, list_method: _ListMethod, listing: CatalogList, zone: str
) -> frozenset[str]:
    parent = f"projects/{cloud.project}/locations/{zone}"

    def every_page(**options: Any) -> frozenset[str]:
        method = getattr(cloud.client(list_method.client), list_method.method)
        pages = method(request={"parent": parent, "page_size": PAGE_SIZE}, **options)
        return frozenset(list_method.name(row) for row in pages)

    return await cloud.call(f"the {listing} of {zone}", every_page, timeout=TIMEOUT_SECONDS)


def _reason(error: TpuctlError) -> str:
    summary = error.diagnostics[0].summary
    return summary[:1].lower() + summary[1:]
