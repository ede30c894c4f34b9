"""Answers from the catalog, and pages of help."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict

from tpuctl.model.capacity.reservation import TpuReservation
from tpuctl.view.responses.base import ABSENT, NullIfEmpty, Number, Response, Timestamp, source


class HelpText(Response):
    """A page of text."""

    text: str


class NameInZone(Response):
    name: str
    zone: str


class ComputeComparison(Response):
    """What Compute Engine lists: machine types with TPUs, compared with the catalog, and the
    project's reservations. `unavailable` is the reason if it did not answer."""

    unavailable: NullIfEmpty[str] = source("problem")
    new: list[NameInZone] = source("comparison.new")
    removed: list[NameInZone] = source("comparison.removed")
    reservations: list[TpuReservation]


class LiveComparison(Response):
    """What Google's APIs list in the zones that answered, compared with the catalog.

    `unavailable` has the reason of each zone that did not answer. All but `compute` is from the
    Cloud TPU API.
    """

    project: str
    zones: list[str] = source("comparison.zones")
    unavailable: dict[str, str] = source("comparison.listed.unread")
    new: list[NameInZone] = source("comparison.new")
    removed: list[NameInZone] = source("comparison.removed")
    compute: ComputeComparison = source("compute", ABSENT)


class AcceleratorType(Response):
    """A TPU type with hourly prices in the cheapest zone; of a new type, few facts are known.

    `apis` has who sells it: `tpu` is the Cloud TPU API, `compute` Compute Engine, where it consists
    of machines of `machine_type`. `architecture` is that of its hosts. The first of `topologies` is
    the default. With --live, `live` is the difference of the Cloud TPU API from the catalog, and
    `live_compute` that of Compute Engine.
    """

    type: str
    generation: str | None
    chips: int | None
    workers: int | None
    apis: list[str]
    machine_type: str | None
    architecture: str | None
    devices: int | None
    topology: str | None
    topologies: list[str]
    hbm_gb: Number | None
    tpu_api: bool
    zones: list[str]
    on_demand: Number | None
    on_demand_zone: str | None
    spot: Number | None
    spot_zone: str | None
    live: str = ABSENT
    live_compute: str = ABSENT


class TypeCatalog(Response):
    """`as_of` is the date of the catalog; `live` is Google's answer with --live."""

    as_of: str
    types: list[AcceleratorType]
    live: LiveComparison | None


class CapacityHistory(Response):
    """What came of this user's requests to one API for a type with one capacity in a zone: the last
    that was granted, and those that were refused since."""

    capacity: str
    api: Literal["tpu", "compute"]
    granted: Timestamp | None = source("granted.time")
    waited_seconds: Number | None = source("granted.seconds")
    refused_since: int
    refused: Timestamp | None = source("refused.time")
    error: str | None = source("refused.error")


class Zone(Response):
    """A zone and what it offers of the selected types; hourly prices and the history are those of a
    single type.

    `apis` and `flex_start` have the APIs that offer a type there, and with flex-start; `calendar`
    is whether its capacity can be reserved for some days.
    """

    zone: str
    region: str
    apis: list[str]
    flex_start: list[str]
    calendar: bool
    generations: list[str]
    types: int | None
    most_chips: int | None
    on_demand: Number | None
    spot: Number | None
    history: list[CapacityHistory]
    live: str = ABSENT
    live_compute: str = ABSENT


class ZoneCatalog(Response):
    as_of: str
    zones: list[Zone]
    live: LiveComparison | None


class Runtime(Response):
    """A runtime of TPU VMs (`generations` and `hosts`), or of TPU nodes (`pytorch`)."""

    runtime: str
    tensorflow: str | None
    generations: list[str] | None = ABSENT
    hosts: str | None = ABSENT
    pytorch: str | None = ABSENT
    live: str = ABSENT


class RuntimeCatalog(Response):
    as_of: str
    runtimes: list[Runtime]
    live: LiveComparison | None


class PriceDifference(Response):
    """Hourly prices in the catalog and in Google's price list; null if it has none."""

    type: str
    zone: str
    capacity: str
    catalog: Number | None
    google: Number | None


class PriceComparison(Response):
    """Google's price list of a date, compared with the catalog."""

    as_of: str
    differences: list[PriceDifference]


class ZonePrice(Response):
    """Hourly prices in a zone, of the selected capacities, at each of the APIs."""

    zone: str
    region: str
    apis: list[str]
    on_demand: Number | None = ABSENT
    spot: Number | None = ABSENT
    flex_start: Number | None = ABSENT


class ZonePrices(Response):
    """Prices of one type by zone."""

    type: str
    as_of: str
    prices: list[ZonePrice]
    live: PriceComparison | None


class NodeOffer(Response):
    """With a budget, `cost` is for its period, and `hours` is how long it lasts."""

    type: str
    chips: int
    capacity: str
    apis: list[str]
    zone: str
    per_hour: Number
    per_chip_hour: Number
    cost: Number | None = ABSENT
    hours: Number = ABSENT


class Budget(Response):
    """Dollars, and the hours that they are for."""

    amount: Number
    hours: Number | None


class NodeOffers(Response):
    """Prices of several types, or what fits a budget."""

    type: None
    as_of: str
    offers: list[NodeOffer]
    budget: Budget = ABSENT
    live: PriceComparison | None


class MachinePrice(Response):
    """Hourly prices of a controller's machine type, in its cheapest or the selected region."""

    machine_type: str
    vcpus: Number
    memory_gb: Number
    region: str
    on_demand: Number
    spot: Number | None


class MachinePrices(Response):
    as_of: str
    machines: list[MachinePrice]


class DiskPrice(Response):
    """Monthly prices per GB in a region, by type of disk."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Number | None]

    region: str


class DiskPrices(Response):
    """Of types in `general`, only the price of us-central1 is published."""

    as_of: str
    general: list[str]
    disks: list[DiskPrice]


class StoragePrice(Response):
    """Prices of a bucket's location: per GB per month, and per GB read from the region."""

    location: str
    gb_month: Number | None
    traffic_gb: Number | None


class StoragePrices(Response):
    as_of: str
    region: str | None
    storage: list[StoragePrice]


class Limit(Response):
    """A quota, what one node needs of it, and what new projects typically get.

    `api` is whose quota it is, and `tpu_family` a dimension of Compute Engine's. `types` are those
    that count against it, when all limits are listed.
    """

    capacity: str
    api: str
    quota: str
    tpu_family: str | None
    scope: str
    unit: str
    per_node: int | None
    default: int | None
    types: list[str] = ABSENT


class ZoneQuota(Response):
    """A `limit` of null is no limit if `limit_known`, and an unknown limit otherwise.

    `nodes` is how many still fit; null is any number, or unknown.
    """

    zone: str
    capacity: str
    api: str
    quota: str
    unit: str
    per_node: int
    limit: Number | None
    limit_known: bool
    usage: Number
    nodes: int | None
    limited_by: str | None


class QuotaIncrease(Response):
    """Where to request more, and the command that does it."""

    url: str
    command: str


class ProjectQuota(Response):
    """A project's quota by zone, and the reasons why parts of it could not be read."""

    project: str
    zones: list[ZoneQuota]
    unavailable: list[str]
    increase: QuotaIncrease


class Limits(Response):
    """The quota that nodes of a type need; of all types if `type` is null."""

    type: str | None
    limits: list[Limit]
    live: ProjectQuota | None
