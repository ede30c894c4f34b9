"""Rows of the lists of the catalog."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from tpuctl.view.columns import ABSENT, Column, Fields, Number, Row


def _apis(row: Fields) -> str | None:
    """The APIs that sell something: `tpu`, `compute` or `both`."""
    return "both" if len(row["apis"]) > 1 else "".join(row["apis"]) or None


def _options(row: Fields) -> list[str]:
    """What a zone has beside capacity on demand and on spot."""
    return ["flex-start"] * bool(row["flex_start"]) + ["calendar"] * row["calendar"]


def _requests(row: Fields) -> str | None:
    return "; ".join(past["text"] for past in row["history"]) or None


def _limit(row: Fields) -> str:
    if row["limit"] is None:
        return "no limit" if row["limit_known"] else "?"
    return f"{row['limit']:g}"


def _nodes(row: Fields) -> str:
    if row["nodes"] is None:
        return "any" if row["limit_known"] else "?"
    return str(row["nodes"])


class AcceleratorType(Row):
    """A TPU type with hourly prices in the cheapest zone; of a new type, few facts are known.

    `apis` has who sells it: `tpu` is the Cloud TPU API, `compute` Compute Engine, where it consists
    of machines of `machine_type`. `architecture` is that of its hosts. The first of `topologies` is
    the default. With --live, `live` is the difference of the Cloud TPU API from the catalog, and
    `live_compute` that of Compute Engine.
    """

    type: Annotated[str, Column()]
    generation: str | None
    chips: Annotated[int | None, Column()]
    workers: Annotated[int | None, Column()]
    apis: Annotated[list[str], Column("API", sort="api", show=_apis)]
    machine_type: str | None
    architecture: str | None
    devices: int | None
    topology: Annotated[str | None, Column()]
    topologies: list[str]
    hbm_gb: Annotated[Number | None, Column("HBM GB")]
    tpu_api: bool
    zones: Annotated[list[str], Column(show=lambda row: len(row["zones"]))]
    on_demand: Annotated[Number | None, Column("from", sort="price")]
    on_demand_zone: str | None
    spot: Number | None
    spot_zone: str | None
    live: Annotated[str, Column()] = ABSENT
    live_compute: Annotated[str, Column("at Compute")] = ABSENT


class CapacityHistory(Row):
    """What came of this user's requests to one API for a type with one capacity in a zone: the last
    that was granted, and those that were refused since."""

    capacity: str
    api: Literal["tpu", "compute"]
    granted: str | None
    waited_seconds: Number | None
    refused_since: int
    refused: str | None
    error: str | None


class Zone(Row):
    """A zone and what it offers of the selected types; hourly prices and the history are those of a
    single type.

    `apis` and `flex_start` have the APIs that offer a type there, and with flex-start; `calendar`
    is whether its capacity can be reserved for some days.
    """

    zone: Annotated[str, Column()]
    region: str
    types: Annotated[int | None, Column()]
    most_chips: Annotated[int | None, Column(sort="chips")]
    on_demand: Annotated[Number | None, Column(sort="price")]
    spot: Annotated[Number | None, Column()]
    apis: Annotated[list[str], Column("API", sort="api", show=_apis)]
    generations: Annotated[list[str], Column()]
    flex_start: list[str]
    calendar: Annotated[bool, Column("also", show=_options)]
    history: Annotated[
        list[CapacityHistory],
        Column("your requests", show=_requests),
    ]
    live: Annotated[str, Column()] = ABSENT
    live_compute: Annotated[str, Column("at Compute")] = ABSENT


class Runtime(Row):
    """A runtime of TPU VMs (`generations` and `hosts`), or of TPU nodes (`pytorch`)."""

    runtime: Annotated[str, Column()]
    tensorflow: Annotated[str | None, Column()]
    generations: Annotated[list[str] | None, Column()] = ABSENT
    hosts: Annotated[str | None, Column()] = ABSENT
    pytorch: Annotated[str | None, Column()] = ABSENT
    live: Annotated[str, Column()] = ABSENT


class ZonePrice(Row):
    """Hourly prices in a zone, of the selected capacities, at each of the APIs."""

    zone: Annotated[str, Column()]
    region: str
    on_demand: Annotated[Number | None, Column(sort="price on-demand")] = ABSENT
    spot: Annotated[Number | None, Column(sort="price spot")] = ABSENT
    flex_start: Annotated[Number | None, Column("flex-start", sort="price flex-start")] = ABSENT
    apis: Annotated[list[str], Column("API", sort="api", show=_apis)]


class NodeOffer(Row):
    """With a budget, `cost` is for its period, and `hours` is how long it lasts."""

    type: Annotated[str, Column()]
    chips: int
    capacity: Annotated[str, Column()]
    zone: Annotated[str, Column()]
    apis: Annotated[list[str], Column("API", sort="api", show=_apis)]
    per_hour: Annotated[Number, Column("an hour", sort="price")]
    per_chip_hour: Annotated[Number, Column("a chip", sort="per-chip")]
    cost: Annotated[Number | None, Column("{budget[period]}")] = ABSENT
    hours: Annotated[Number, Column(show=lambda row: f"{row['hours']:,.1f}")] = ABSENT


class MachinePrice(Row):
    """Hourly prices of a controller's machine type, in its cheapest or the selected region."""

    machine_type: Annotated[str, Column()]
    vcpus: Annotated[Number, Column("vCPUs")]
    memory_gb: Annotated[Number, Column("GB", show=lambda row: f"{row['memory_gb']:g}")]
    region: Annotated[str, Column()]
    on_demand: Annotated[Number, Column(sort="price")]
    spot: Annotated[Number | None, Column()]


class DiskPrice(Row):
    """Monthly prices per GB in a region, by type of disk."""

    model_config: ClassVar[dict[str, Any]] = {"extra": "allow"}
    __pydantic_extra__: dict[str, Number | None]

    region: Annotated[str, Column()]


class StoragePrice(Row):
    """Prices of a bucket's location: per GB per month, and per GB read from the region."""

    location: Annotated[str, Column()]
    gb_month: Annotated[Number | None, Column("per GB per month", sort="price")]
    traffic_gb: Annotated[Number | None, Column("per GB read from {region}", sort="traffic")]


class Limit(Row):
    """A quota, what one node needs of it, and what new projects typically get.

    `api` is whose quota it is, and `tpu_family` a dimension of Compute Engine's. `types` are those
    that count against it, when all limits are listed.
    """

    capacity: Annotated[str, Column()]
    api: Annotated[str, Column("API")]
    quota: Annotated[str, Column()]
    tpu_family: str | None
    scope: str
    unit: str
    per_node: Annotated[int | None, Column(show=lambda row: f"{row['per_node']} {row['unit']}")]
    default: int | None
    types: list[str] = ABSENT


class LimitPair(Row):
    """The limits of types that count against the same ones, without what their names share; only
    in tables."""

    types: Annotated[
        list[str],
        Column("type", show=lambda row: f"{row['types'][0]}{'+' * (len(row['types']) > 1)}"),
    ]
    on_demand: Annotated[str | None, Column()]
    spot: Annotated[str | None, Column()]
    unit: Annotated[str, Column()]
    api: str


class ZoneQuota(Row):
    """A `limit` of null is no limit if `limit_known`, and an unknown limit otherwise.

    `nodes` is how many still fit; null is any number, or unknown.
    """

    zone: Annotated[str, Column()]
    capacity: Annotated[str, Column()]
    api: Annotated[str, Column("API")]
    quota: str
    unit: str
    per_node: int
    limit: Annotated[Number | None, Column(show=_limit)]
    limit_known: bool
    usage: Annotated[Number, Column(show=lambda row: f"{row['usage']:g}")]
    nodes: Annotated[int | None, Column(show=_nodes)]
    limited_by: Annotated[str | None, Column()]
