"""Answers from the catalog, and pages of help."""

from __future__ import annotations

from tpuctl.model.capacity.reservation import TpuReservation
from tpuctl.view import lists
from tpuctl.view.columns import ABSENT, Number
from tpuctl.view.responses.base import NullIfEmpty, Response, source


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


class TypeCatalog(Response):
    """`as_of` is the date of the catalog; `live` is Google's answer with --live."""

    as_of: str
    types: list[lists.AcceleratorType]
    live: LiveComparison | None


class ZoneCatalog(Response):
    as_of: str
    zones: list[lists.Zone]
    live: LiveComparison | None


class RuntimeCatalog(Response):
    as_of: str
    runtimes: list[lists.Runtime]
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


class ZonePrices(Response):
    """Prices of one type by zone."""

    type: str
    as_of: str
    prices: list[lists.ZonePrice]
    live: PriceComparison | None


class Budget(Response):
    """Dollars, and the hours that they are for."""

    amount: Number
    hours: Number | None


class NodeOffers(Response):
    """Prices of several types, or what fits a budget."""

    type: None
    as_of: str
    offers: list[lists.NodeOffer]
    budget: Budget = ABSENT
    live: PriceComparison | None


class MachinePrices(Response):
    as_of: str
    machines: list[lists.MachinePrice]


class DiskPrices(Response):
    """Of types in `general`, only the price of us-central1 is published."""

    as_of: str
    general: list[str]
    disks: list[lists.DiskPrice]


class StoragePrices(Response):
    as_of: str
    region: str | None
    storage: list[lists.StoragePrice]


class QuotaIncrease(Response):
    """Where to request more, and the command that does it."""

    url: str
    command: str


class ProjectQuota(Response):
    """A project's quota by zone, and the reasons why parts of it could not be read."""

    project: str
    zones: list[lists.ZoneQuota]
    unavailable: list[str]
    increase: QuotaIncrease


class Limits(Response):
    """The quota that nodes of a type need; of all types if `type` is null."""

    type: str | None
    limits: list[lists.Limit]
    live: ProjectQuota | None
