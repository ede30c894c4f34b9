"""The live catalogs of both APIs, by zone: types and versions of Cloud TPU, machine types of
Compute Engine; and the project's reservations of TPUs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal

from tpuctl.catalog import TPU_MACHINE_FAMILIES, is_tpu_machine
from tpuctl.cloud.clients import Cloud
from tpuctl.engine.step import step
from tpuctl.errors import TpuctlError
from tpuctl.model.capacity.live_catalog import Listed
from tpuctl.model.capacity.reservation import TpuReservation, reservation_of
from tpuctl.model.events import Emit

CatalogList = Literal["types", "runtimes", "node versions"]
MAX_PARALLEL = 8
TIMEOUT_SECONDS = 30.0
PAGE_SIZE = 1000
# Of a machine type that only repeats another with another name of its accelerator.
REPEATED_SUFFIX = "-tpu"


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
    return Listed(names, {zone: short_reason(error) for zone, error in sorted(refusals.items())})


async def list_machine_types(
    cloud: Cloud, zones: Collection[str], catalog_names: Collection[str], emit: Emit
) -> Listed:
    """The machine types with TPUs that Compute Engine lists in these zones, in one request.

    Of pairs such as `ct6e-standard-4t` and `ct6e-standard-4t-tpu`, only those that are in the
    catalog. Raises TpuctlError.
    """
    families = "|".join(TPU_MACHINE_FAMILIES.values())
    names: dict[str, set[str]] = {zone: set() for zone in zones}
    with step(emit, "machine types with TPUs", "find") as progress:
        query = {"filter": f'name eq "({families})-.*"'}
        async for zone, row in list_aggregated(cloud, "machineTypes", query):
            name = row["name"]
            is_repeated = name.endswith(REPEATED_SUFFIX) and name not in catalog_names
            if zone in names and is_tpu_machine(name) and not is_repeated:
                names[zone].add(name)
        progress.result = f"{len(set().union(*names.values()))} listed"
    return Listed({zone: frozenset(listed) for zone, listed in names.items()})


async def list_reservations(cloud: Cloud, emit: Emit) -> tuple[TpuReservation, ...]:
    """The project's reservations and future reservations of TPUs. Raises TpuctlError."""
    with step(emit, "reservations of TPUs", "find") as progress:
        collections = {"reservations": False, "futureReservations": True}
        reservations = [
            reservation
            for collection, is_future in collections.items()
            async for _, row in list_aggregated(cloud, collection)
            if (reservation := reservation_of(row, is_future=is_future)) is not None
        ]
        progress.result = f"{len(reservations)} listed"
    return tuple(sorted(reservations, key=attrgetter("zone", "is_future", "name")))


async def list_aggregated(
    cloud: Cloud, collection: str, query: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[str, Any]]:
    """(zone, resource as JSON) for each resource of a zonal collection of Compute Engine, also
    of those that no stack created. Raises TpuctlError."""
    path = f"/compute/v1/projects/{cloud.project}/aggregated/{collection}"

    def every_page(**options: Any) -> list[Any]:
        return list(cloud.client("rest").pages("compute", path, query=query, **options))

    pages = await cloud.call(f"the list of {collection}", every_page, timeout=TIMEOUT_SECONDS)
    for page in pages:
        for scope, contents in page.get("items", {}).items():
            for resource in contents.get(collection, ()):
                yield scope.rpartition("/")[2], resource


async def _list_zone(
    cloud: Cloud, list_method: _ListMethod, listing: CatalogList, zone: str
) -> frozenset[str]:
    parent = f"projects/{cloud.project}/locations/{zone}"

    def every_page(**options: Any) -> frozenset[str]:
        method = getattr(cloud.client(list_method.client), list_method.method)
        pages = method(request={"parent": parent, "page_size": PAGE_SIZE}, **options)
        return frozenset(list_method.name(row) for row in pages)

    return await cloud.call(f"the {listing} of {zone}", every_page, timeout=TIMEOUT_SECONDS)


def short_reason(error: TpuctlError) -> str:
    """Why something could not be read, for the end of a sentence."""
    summary = error.diagnostics[0].summary
    return summary[:1].lower() + summary[1:]
