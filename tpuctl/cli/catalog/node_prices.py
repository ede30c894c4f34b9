"""`prices` for nodes: a type by zone, the cheapest zone of several types, and budgets.

Prices come from the catalog, or from Google's price list with --live.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpuctl.cli.catalog.selection import field, natural_key, sort_rows, suggest
from tpuctl.cli.state import State

if TYPE_CHECKING:
    from tpuctl.catalog import AcceleratorType, Capacity, Choice, Offer, Price
    from tpuctl.model.budget import Budget
    from tpuctl.model.price_list import PriceList

__all__ = ["NodePrices"]

Row = dict[str, Any]
TITLES = {"on-demand": "on demand", "spot": "spot", "flex-start": "flex-start"}
TOLERANCE = 1e-4  # published prices may be rounded
MAX_SHOWN = 10  # differences that are listed
CONTROLLER = "n1-standard-1"  # the default in a stack file
WIDTH = 80


@dataclass(frozen=True)
class NodePrices:
    """Prices of the selected types, zones and capacities."""

    state: State
    choice: Choice
    capacities: tuple[Capacity, ...]
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

    def by_zone(self, sort: str, limit: int | None) -> None:
        """A single type by zone, cheapest first."""
        from tpuctl.catalog import region_of
        from tpuctl.view.tables import print_rows

        (only,) = self.choice.types
        rows: list[Row] = []
        reads = []
        for zone in self.choice.zones_of(only):
            by_capacity = {
                capacity: self.price(only, zone, capacity) for capacity in self.capacities
            }
            reads += [
                price.read
                for price in by_capacity.values()
                if price and price.capacity == "flex-start"
            ]
            amounts = {
                _field(name): price.per_hour if price else None
                for name, price in by_capacity.items()
            }
            rows.append({"zone": zone, "region": region_of(zone), **amounts})
        names = [_field(name) for name in self.capacities]
        rows.sort(key=lambda row: (row[names[0]] is None, row[names[0]] or 0.0, row["zone"]))
        rows = sort_rows(
            rows,
            sort,
            limit,
            {
                "zone": field("zone"),
                "region": field("region"),
                "price": field(names[0]),
                **{name: field(_field(name)) for name in self.capacities},
            },
        )
        columns = {
            "zone": "zone",
            **{_field(capacity): TITLES[capacity] for capacity in self.capacities},
        }
        if not reads and len(columns) > 2:
            columns.pop("flex_start", None)

        def show() -> None:
            print_rows(rows, columns, numbers=names)
            _print_wrapped(
                f"US dollars per hour for one {only.name}, {self._dated}; spot prices vary."
            )
            if reads and self.live is None:
                _print_wrapped(
                    f"Flex-start prices as of {reads[0]}; other regions have no published price."
                )
            self._print_differences()
            if rows:
                suggest(
                    self.state,
                    "To see what fits a budget:",
                    f"tpuctl prices {only.name} --budget 20/day",
                )

        data = {"type": only.name, "as_of": self.read, "prices": rows, "live": self._live_data()}
        self.state.answer(data, show)

    def offers(
        self, budget: Budget | None, *, every_zone: bool, sort: str, limit: int | None
    ) -> None:
        """Several types, each in its cheapest zone; or the offers within a budget."""
        from tpuctl.catalog import cheapest, offers_of

        everything = offers_of(self.choice, self.capacities, self.price)
        matches = [offer for offer in everything if budget is None or budget.allows(offer.per_hour)]
        if not every_zone and len(self.choice.types) != 1:
            matches = cheapest(matches)
        if budget is not None:  # cheapest first, then most chips
            matches.sort(key=lambda offer: (round(offer.per_hour, 9), -offer.accelerator.chips))
        rows = sort_rows(
            [_offer_row(offer, budget) for offer in matches],
            sort,
            limit,
            {
                "type": lambda row: natural_key(row["type"]),
                "capacity": field("capacity"),
                "chips": field("chips"),
                "zone": field("zone"),
                "price": field("per_hour"),
                "per-chip": field("per_chip_hour"),
                **({"hours": field("hours")} if budget is not None else {}),
            },
        )

        def show() -> None:
            if rows:
                self._show_offers(rows, budget)
            else:
                self._print_no_offers(everything, budget)
            self._print_differences()

        data: Row = {"type": None, "as_of": self.read, "offers": rows, "live": self._live_data()}
        if budget is not None:
            data["budget"] = {"amount": budget.sum, "hours": budget.hours}
        self.state.answer(data, show)

    @property
    def _dated(self) -> str:
        return f"Google's list of {self.read}" if self.live else f"prices of {self.read}"

    def _show_offers(self, rows: list[Row], budget: Budget | None) -> None:
        from tpuctl.view.tables import print_rows

        columns = {"type": "type", "capacity": "capacity", "zone": "zone", "per_hour": "an hour"}
        if budget is None:
            print_rows(rows, {**columns, "per_chip_hour": "a chip"})
            _print_wrapped(f"US dollars per hour for one node, {self._dated}; spot prices vary.")
            suggest(self.state, "To see all zones of a type:", f"tpuctl prices {rows[0]['type']}")
            return
        if budget.hours is not None:
            columns["cost"] = budget.period_text if budget.is_named else budget.period
        formatted = [{**row, "hours": f"{row['hours']:,.1f}"} for row in rows]
        print_rows(formatted, {**columns, "hours": "hours"}, numbers=("hours",))
        _print_wrapped(
            f"US dollars for one node, {self._dated}; spot prices vary. Hours: how long "
            f"{budget.amount} lasts."
        )
        _print_wrapped(_not_included(str(rows[0]["zone"])))
        suggest(
            self.state,
            "To see all zones of a type within the budget:",
            f"tpuctl prices {rows[0]['type']} --budget {budget.expression}",
        )

    def _print_no_offers(self, everything: list[Offer], budget: Budget | None) -> None:
        if not self.choice.types:
            _print_wrapped("None of these zones offers such a type. To list zones: tpuctl zones")
        elif not everything:
            _print_wrapped("No price is known for this selection.")
        else:
            least = everything[0]
            price = least.price
            _print_wrapped(
                f"{budget} is not enough: the cheapest is {least.accelerator.name} in "
                f"{least.zone} for {price}."
            )
            if budget is not None:
                _print_wrapped(
                    f"{budget.amount} would last {budget.hours_of(least.per_hour):,.1f} hours."
                )

    def _differences(self) -> list[Row]:
        """Prices that differ between Google's list and the catalog, or are in only one."""
        from tpuctl.catalog import node_price

        found: list[Row] = []
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

    def _live_data(self) -> Row | None:
        if self.live is None:
            return None
        return {"as_of": self.live.read, "differences": self._differences()}

    def _print_differences(self) -> None:
        from tpuctl.units import dollars

        if self.live is None:
            return
        differences = self._differences()
        if not differences:
            _print_wrapped("No differences from the catalog.")
            return
        for difference in differences[:MAX_SHOWN]:
            subject = (
                f"{difference['type']} in {difference['zone']}, {TITLES[difference['capacity']]}"
            )
            if difference["google"] is None:
                _print_wrapped(
                    f"No clear SKU for {subject}; the catalog has {dollars(difference['catalog'])}."
                )
            elif difference["catalog"] is None:
                _print_wrapped(
                    f"New: {subject}: {dollars(difference['google'])}; the catalog has none."
                )
            else:
                now, before = dollars(difference["google"]), dollars(difference["catalog"])
                _print_wrapped(f"Changed: {subject}: {now}; the catalog has {before}.")
        if len(differences) > MAX_SHOWN:
            _print_wrapped(f"And {len(differences) - MAX_SHOWN} more differ; --json lists all.")


def _field(capacity: str) -> str:
    return capacity.replace("-", "_")


def _is_same(before: Price | None, now: Price | None) -> bool:
    if before is None or now is None:
        return before is now
    return abs(before.per_hour - now.per_hour) <= TOLERANCE * before.per_hour


def _offer_row(offer: Offer, budget: Budget | None) -> Row:
    """With a budget, also the cost for its period and the hours that it lasts."""
    row: Row = {
        "type": offer.accelerator.name,
        "chips": offer.accelerator.chips,
        "capacity": offer.capacity,
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


def _print_wrapped(text: str) -> None:
    from tpuctl.view.text_wrapping import wrap

    print(wrap(text, WIDTH))
