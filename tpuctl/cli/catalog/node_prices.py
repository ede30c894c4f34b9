"""`prices` for nodes: a type by zone, the cheapest zone of several types, and budgets.

Prices come from the catalog, or from Google's price list with --live.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuctl.cli import responses
from tpuctl.cli.catalog.selection import Fields, answer_rows
from tpuctl.cli.parameters.options import Order
from tpuctl.cli.state import State
from tpuctl.view import lists

if TYPE_CHECKING:
    from tpuctl.catalog import AcceleratorType, Api, Capacity, Choice, Offer, Price
    from tpuctl.model.cost.budget import Budget
    from tpuctl.model.cost.price_list import PriceList
    from tpuctl.view.columns import Row
    from tpuctl.view.responses.base import Response

TITLES = {"on-demand": "on demand", "spot": "spot", "flex-start": "flex-start"}
TOLERANCE = 1e-4  # published prices may be rounded
MAX_SHOWN = 10  # differences that are listed
CONTROLLER = "n1-standard-1"  # the default in a stack file


@dataclass(frozen=True)
class NodePrices:
    """Prices of the selected types, zones and capacities."""

    state: State
    choice: Choice
    capacities: tuple[Capacity, ...]
    order: Order
    live: PriceList | None = None

    @property
    def read(self) -> str:
        from tpuctl.catalog import read_date

        return self.live.read if self.live is not None else read_date()

    def price(self, accelerator: AcceleratorType, zone: str, capacity: Capacity) -> Price | None:
        from tpuctl.catalog import node_price

        if self.live is not None:
            return self.live.price(accelerator, zone, capacity)
        return node_price(accelerator, zone, capacity=capacity)

    def by_zone(self) -> None:
        """A single type by zone, cheapest first."""
        from tpuctl.catalog import region_of

        (only,) = self.choice.types
        first = _field(self.capacities[0])
        rows: list[Fields] = []
        reads = []
        for zone in self.choice.zones_of(only):
            prices = {capacity: self.price(only, zone, capacity) for capacity in self.capacities}
            if flex_start := prices.get("flex-start"):
                reads.append(flex_start.read)
            amounts = {
                _field(name): price.per_hour if price else None for name, price in prices.items()
            }
            rows.append(
                {"zone": zone, "region": region_of(zone), "apis": _sellers(only, zone), **amounts}
            )
        rows.sort(key=lambda row: (row[first] is None, row[first] or 0.0, row["zone"]))
        rows = self.order.apply(lists.ZonePrice, rows)
        sentences = [f"US dollars per hour for one {only.name}, {self._dated}; spot prices vary."]
        if reads and self.live is None:
            sentences.append(
                f"Flex-start prices as of {reads[0]}; other regions have no published price."
            )
        self._answer(
            lists.ZonePrice,
            lambda: responses.catalog.ZonePrices,
            {"type": only.name, "as_of": self.read, "prices": rows},
            rows,
            sentences,
            () if reads or first == "flex_start" else ("flex_start",),
            ("To see what fits a budget:", f"tpuctl prices {only.name} --budget 20/day"),
        )

    def offers(self, budget: Budget | None, *, every_zone: bool) -> None:
        """Several types, each in its cheapest zone; or the offers within a budget."""
        from tpuctl.catalog import cheapest, offers_of

        everything = offers_of(self.choice, self.capacities, self.price)
        matches = [offer for offer in everything if budget is None or budget.allows(offer.per_hour)]
        if not every_zone and len(self.choice.types) != 1:
            matches = cheapest(matches)
        if budget is not None:  # cheapest first, then most chips
            matches.sort(key=lambda offer: (round(offer.per_hour, 9), -offer.accelerator.chips))
        rows = self.order.apply(lists.NodeOffer, [_offer_row(offer, budget) for offer in matches])
        data: Fields = {"type": None, "as_of": self.read, "offers": rows}
        without = ["per_chip_hour"] * (budget is not None)
        suggestion = None
        if not rows:
            sentences = [*self._no_offers(everything, budget)]
        elif budget is None:
            sentences = [f"US dollars per hour for one node, {self._dated}; spot prices vary."]
            suggestion = "To see all zones of a type:", f"tpuctl prices {rows[0]['type']}"
        else:
            sentences = [
                f"US dollars for one node, {self._dated}; spot prices vary. Hours: how long "
                f"{budget.amount} lasts.",
                _not_included(rows[0]["zone"]),
            ]
            suggestion = (
                "To see all zones of a type within the budget:",
                f"tpuctl prices {rows[0]['type']} --budget {budget.expression}",
            )
        if budget is not None:
            period = budget.period_text if budget.is_named else budget.period
            data["budget"] = {"amount": budget.sum, "hours": budget.hours, "period": period}
            without += ["cost"] * (budget.hours is None)
        self._answer(
            lists.NodeOffer,
            lambda: responses.catalog.NodeOffers,
            data,
            rows,
            sentences,
            without,
            suggestion,
        )

    def _answer(
        self,
        row_type: type[Row],
        model: Callable[[], type[Response]],
        data: Fields,
        rows: list[Fields],
        sentences: Iterable[str],
        without: Collection[str],
        suggestion: tuple[str, str] | None,
    ) -> None:
        """Answer with prices, and with --live the differences from the catalog."""
        live = None
        if self.live is not None:
            differences = self._differences()
            live = {"as_of": self.live.read, "differences": differences}
            sentences = [*sentences, *_difference_sentences(differences)]
        answer_rows(
            self.state,
            row_type,
            model,
            {**data, "live": live},
            rows,
            sentences,
            without=without,
            suggestion=suggestion,
        )

    def _no_offers(self, everything: list[Offer], budget: Budget | None) -> Iterator[str]:
        if not self.choice.types:
            yield "None of these zones offers such a type. To list zones: tpuctl zones"
        elif not everything or budget is None:
            yield "No price is known for this selection."
        else:
            least = everything[0]
            yield (
                f"{budget} is not enough: the cheapest is {least.accelerator.name} in "
                f"{least.zone} for {least.price}."
            )
            yield f"{budget.amount} would last {budget.hours_of(least.per_hour):,.1f} hours."

    @property
    def _dated(self) -> str:
        return f"Google's list of {self.read}" if self.live else f"prices of {self.read}"

    def _differences(self) -> list[Fields]:
        """Prices that differ between Google's list and the catalog, or are in only one."""
        from tpuctl.catalog import node_price

        found: list[Fields] = []
        for accelerator in self.choice.types:
            for zone in self.choice.zones_of(accelerator):
                for capacity in self.capacities:
                    before = node_price(accelerator, zone, capacity=capacity)
                    now = self.price(accelerator, zone, capacity)
                    if not _is_same(before, now):
                        found.append(
                            {
                                "type": accelerator.name,
                                "zone": zone,
                                "capacity": capacity,
                                "catalog": before.per_hour if before else None,
                                "google": now.per_hour if now else None,
                            }
                        )
        return found


def _difference_sentences(differences: list[Fields]) -> Iterator[str]:
    from tpuctl.units import dollars

    if not differences:
        yield "No differences from the catalog."
    for difference in differences[:MAX_SHOWN]:
        subject = f"{difference['type']} in {difference['zone']}, {TITLES[difference['capacity']]}"
        now, before = difference["google"], difference["catalog"]
        if now is None:
            yield f"No clear SKU for {subject}; the catalog has {dollars(before)}."
        elif before is None:
            yield f"New: {subject}: {dollars(now)}; the catalog has none."
        else:
            yield f"Changed: {subject}: {dollars(now)}; the catalog has {dollars(before)}."
    if len(differences) > MAX_SHOWN:
        yield f"And {len(differences) - MAX_SHOWN} more differ; --json lists all."


def _field(capacity: str) -> str:
    return capacity.replace("-", "_")


def _is_same(before: Price | None, now: Price | None) -> bool:
    if before is None or now is None:
        return before is now
    return abs(before.per_hour - now.per_hour) <= TOLERANCE * before.per_hour


def _sellers(accelerator: AcceleratorType, zone: str) -> list[Api]:
    from tpuctl.catalog import apis_of, zones_of

    return [api for api in apis_of(accelerator) if zone in zones_of(accelerator, api)]


def _offer_row(offer: Offer, budget: Budget | None) -> Fields:
    """With a budget, also the cost for its period and the hours that it lasts."""
    row: Fields = {
        "type": offer.accelerator.name,
        "chips": offer.accelerator.chips,
        "capacity": offer.capacity,
        "apis": _sellers(offer.accelerator, offer.zone),
        "zone": offer.zone,
        "per_hour": offer.per_hour,
        "per_chip_hour": offer.per_chip,
    }
    if budget is not None:
        row["cost"] = offer.per_hour * budget.hours if budget.hours is not None else None
        row["hours"] = budget.hours_of(offer.per_hour)
    return row


def _not_included(zone: str) -> str:
    """The other costs of a stack with such a node, in its region."""
    from tpuctl.catalog import (
        address_price,
        machine_price,
        machine_type,
        region_of,
        storage_price,
    )
    from tpuctl.units import dollars

    region = region_of(zone)
    demand, spot = address_price().per_hour, address_price(spot=True).per_hour
    parts = [f"an external address per worker ({dollars(demand)}/h, {dollars(spot)}/h on spot)"]
    storage = storage_price(region)
    bucket = f" ({dollars(storage.amount)} per GB per month in {region})" if storage else ""
    parts.append(f"the bucket{bucket}")
    machine = machine_type(CONTROLLER)
    price = machine_price(machine, region) if machine is not None else None
    paid = f" ({CONTROLLER} {dollars(price.per_hour)}/h in {region})" if price else ""
    parts.append(f"a TPU node's controller{paid}")
    return f"Not included: {', '.join(parts)}, disks and traffic. `tpuctl plan` shows the total."
