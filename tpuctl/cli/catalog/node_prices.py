"""What `prices` shows of nodes: a type by zone, types where they are cheapest, what a budget pays.

The figures are the catalog's, or those of Google's list where that was asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpuctl.cli.catalog.selection import field, in_order, natural, then
from tpuctl.cli.state import State

if TYPE_CHECKING:
    from tpuctl.catalog import AcceleratorType, Capacity, Choice, Offer, Price
    from tpuctl.model.budget import Budget
    from tpuctl.model.price_list import PriceList

__all__ = ["Shown"]

Row = dict[str, Any]
TITLES = {"on-demand": "on demand", "spot": "spot", "flex-start": "flex-start"}
EQUAL = 1e-4  # what is read may be rounded
SHOWN = 10  # differences that are told one by one
CONTROLLER = "n1-standard-1"  # what a stack file asks for unless it says otherwise
WIDTH = 80


@dataclass(frozen=True)
class Shown:
    """Prices of a choice of types and zones, in these capacities."""

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
        """Of a single type, the cheapest zone first."""
        from tpuctl.catalog import region_of
        from tpuctl.view.tables import print_rows

        (only,) = self.choice.types
        rows: list[Row] = []
        reads = []
        for zone in self.choice.zones_of(only):
            found = {one: self.price(only, zone, one) for one in self.capacities}
            reads += [one.read for one in found.values() if one and one.capacity == "flex-start"]
            amounts = {_field(name): one.per_hour if one else None for name, one in found.items()}
            rows.append({"zone": zone, "region": region_of(zone), **amounts})
        names = [_field(name) for name in self.capacities]
        rows.sort(key=lambda row: (row[names[0]] is None, row[names[0]] or 0.0, row["zone"]))
        rows = in_order(
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
        columns = {"zone": "zone", **{_field(one): TITLES[one] for one in self.capacities}}
        if not reads and len(columns) > 2:
            columns.pop("flex_start", None)

        def show() -> None:
            print_rows(rows, columns, numbers=names)
            _say(f"US dollars an hour for one {only.name}, {self._dated}; spot floats.")
            if reads and self.live is None:
                _say(f"Flex-start as read on {reads[0]}; for regions without a figure ask Google.")
            self._tell_differences()
            if rows:
                then(
                    self.state,
                    "What fits a budget:",
                    f"tpuctl prices {only.name} --budget 20/day",
                )

        data = {"type": only.name, "as_of": self.read, "prices": rows, "live": self._live_data()}
        self.state.answer(data, show)

    def offers(
        self, paid: Budget | None, *, every_zone: bool, sort: str, limit: int | None
    ) -> None:
        """Of several types, each where it is cheapest; or what a budget pays for."""
        from tpuctl.catalog import cheapest, offers_of

        everything = offers_of(self.choice, self.capacities, self.price)
        found = [one for one in everything if paid is None or paid.allows(one.per_hour)]
        if not every_zone and len(self.choice.types) != 1:
            found = cheapest(found)
        if paid is not None:  # the cheapest first, of equal ones that with more chips
            found.sort(key=lambda one: (round(one.per_hour, 9), -one.accelerator.chips))
        rows = in_order(
            [_offer_row(one, paid) for one in found],
            sort,
            limit,
            {
                "type": lambda row: natural(row["type"]),
                "capacity": field("capacity"),
                "chips": field("chips"),
                "zone": field("zone"),
                "price": field("per_hour"),
                "per-chip": field("per_chip_hour"),
                **({"hours": field("hours")} if paid is not None else {}),
            },
        )

        def show() -> None:
            if rows:
                self._show_offers(rows, paid)
            else:
                self._tell_nothing(everything, paid)
            self._tell_differences()

        data: Row = {"type": None, "as_of": self.read, "offers": rows, "live": self._live_data()}
        if paid is not None:
            data["budget"] = {"amount": paid.sum, "hours": paid.hours}
        self.state.answer(data, show)

    @property
    def _dated(self) -> str:
        return f"Google's list of {self.read}" if self.live else f"prices of {self.read}"

    def _show_offers(self, rows: list[Row], paid: Budget | None) -> None:
        from tpuctl.view.tables import print_rows

        columns = {"type": "type", "capacity": "capacity", "zone": "zone", "per_hour": "an hour"}
        if paid is None:
            print_rows(rows, {**columns, "per_chip_hour": "a chip"})
            _say(f"US dollars an hour for one node, {self._dated}; spot floats.")
            then(self.state, "Every zone of a type:", f"tpuctl prices {rows[0]['type']}")
            return
        if paid.hours is not None:
            columns["cost"] = paid.period_text if paid.is_named else paid.period
        shown = [{**row, "hours": f"{row['hours']:,.1f}"} for row in rows]
        print_rows(shown, {**columns, "hours": "hours"}, numbers=("hours",))
        _say(
            f"US dollars for one node, {self._dated}; spot floats. Hours: how long "
            f"{paid.amount} lasts."
        )
        _say(_not_included(str(rows[0]["zone"])))
        then(
            self.state,
            "Every zone of one of them that fits:",
            f"tpuctl prices {rows[0]['type']} --budget {paid.expression}",
        )

    def _tell_nothing(self, everything: list[Offer], paid: Budget | None) -> None:
        if not self.choice.types:
            _say("None of the zones asked for offers such a type. See which do: tpuctl zones")
        elif not everything:
            _say("No price is known of what was asked for.")
        else:
            least = everything[0]
            price = least.price
            _say(
                f"{paid} pays for none of them: the cheapest is {least.accelerator.name} in "
                f"{least.zone} for {price}."
            )
            if paid is not None:
                _say(f"{paid.amount} would last {paid.hours_of(least.per_hour):,.1f} hours of it.")

    def _differences(self) -> list[Row]:
        """Where Google's list tells another price than the catalog, or only one of them does."""
        from tpuctl.catalog import node_price

        found: list[Row] = []
        for one in self.choice.types:
            for zone in self.choice.zones_of(one):
                for capacity in self.capacities:
                    before = node_price(one, zone, capacity=capacity)
                    now = self.price(one, zone, capacity)
                    if not _is_same(before, now):
                        found.append(
                            {
                                "type": one.name,
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

    def _tell_differences(self) -> None:
        from tpuctl.view.tables import money

        if self.live is None:
            return
        found = self._differences()
        if not found:
            _say("All is as in the catalog.")
            return
        for one in found[:SHOWN]:
            what = f"{one['type']} in {one['zone']}, {TITLES[one['capacity']]}"
            if one["google"] is None:
                _say(f"No SKU surely tells {what}; the catalog has {money(one['catalog'])}.")
            elif one["catalog"] is None:
                _say(f"New: {what}: {money(one['google'])}; the catalog has none.")
            else:
                now, before = money(one["google"]), money(one["catalog"])
                _say(f"Changed: {what}: {now}; the catalog has {before}.")
        if len(found) > SHOWN:
            _say(f"And {len(found) - SHOWN} more differ; --json has them all.")


def _field(capacity: str) -> str:
    return capacity.replace("-", "_")


def _is_same(before: Price | None, now: Price | None) -> bool:
    if before is None or now is None:
        return before is now
    return abs(before.per_hour - now.per_hour) <= EQUAL * before.per_hour


def _offer_row(one: Offer, paid: Budget | None) -> Row:
    """With a budget also what its time costs, and how many hours its sum lasts."""
    row: Row = {
        "type": one.accelerator.name,
        "chips": one.accelerator.chips,
        "capacity": one.capacity,
        "zone": one.zone,
        "per_hour": one.per_hour,
        "per_chip_hour": one.per_chip,
    }
    if paid is not None:
        row["cost"] = one.per_hour * paid.hours if paid.hours is not None else None
        row["hours"] = paid.hours_of(one.per_hour)
    return row


def _not_included(zone: str) -> str:
    """What a stack with such a node pays besides, in its region."""
    from tpuctl.catalog import (
        address_price,
        machine_price,
        machine_type,
        region_of,
        storage_price,
    )
    from tpuctl.view.tables import money

    region = region_of(zone)
    demand, spot = address_price().per_hour, address_price(spot=True).per_hour
    parts = [f"an external address of each worker ({money(demand)}/h, {money(spot)}/h on spot)"]
    kept = storage_price(region)
    bucket = f" ({money(kept.amount)} per GB per month in {region})" if kept else ""
    parts.append(f"the bucket{bucket}")
    machine = machine_type(CONTROLLER)
    price = machine_price(machine, region) if machine is not None else None
    paid = f" ({CONTROLLER} {money(price.per_hour)}/h in {region})" if price else ""
    parts.append(f"a TPU node's controller{paid}")
    return f"Not in it: {', '.join(parts)}, disks and traffic. `tpuctl plan` adds them up."


def _say(text: str) -> None:
    from tpuctl.view.text_wrapping import wrapped

    print(wrapped(text, WIDTH))
