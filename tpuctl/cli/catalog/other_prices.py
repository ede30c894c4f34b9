"""`prices` for machines, disks and storage."""

from __future__ import annotations

from typing import Any

from tpuctl.cli.catalog.selection import field, natural_key, sort_rows
from tpuctl.cli.state import State

__all__ = ["disk_prices", "machine_prices", "storage_prices"]


def machine_prices(state: State, region: str, sort: str, limit: int | None) -> None:
    """In one region, or each in its cheapest region."""
    from tpuctl.catalog import machine_price, machine_types, regions
    from tpuctl.view.tables import print_table

    rows: list[dict[str, Any]] = []
    read = ""
    for machine in machine_types().values():
        offers = [
            (price, name)
            for name in ([region] if region else regions())
            if (price := machine_price(machine, name)) is not None
        ]
        if not offers:
            continue
        demand, where = min(offers, key=lambda offer: (offer[0].per_hour, offer[1]))
        spot = machine_price(machine, where, spot=True)
        read = demand.read
        rows.append(
            {
                "machine_type": machine.name,
                "vcpus": machine.vcpus,
                "memory_gb": machine.memory_gb,
                "region": where,
                "on_demand": demand.per_hour,
                "spot": spot.per_hour if spot else None,
            }
        )
    rows.sort(key=lambda row: (row["machine_type"].split("-")[0], row["on_demand"]))
    rows = sort_rows(
        rows,
        sort,
        limit,
        {
            "machine-type": lambda row: natural_key(row["machine_type"]),
            "vcpus": field("vcpus"),
            "memory-gb": field("memory_gb"),
            "region": field("region"),
            "price": field("on_demand"),
            "spot": field("spot"),
        },
    )
    columns = ("machine type", "vCPUs", "GB", "region", "on demand", "spot")

    def show() -> None:
        if not rows:
            print(f"No machine prices are published for {region}.")
            return
        print_table(
            columns,
            [
                (
                    row["machine_type"],
                    str(row["vcpus"]),
                    f"{row['memory_gb']:g}",
                    row["region"],
                    _money(row["on_demand"]),
                    _money(row["spot"]),
                )
                for row in rows
            ],
            numbers=("vCPUs", "GB", "on demand", "spot"),
        )
        cheapest = "" if region else ", each in its cheapest region"
        print(f"US dollars per hour without disks{cheapest}, prices of {read}; spot prices vary.")

    state.answer({"as_of": read, "machines": rows}, show)


def disk_prices(state: State, region: str, sort: str, limit: int | None) -> None:
    from tpuctl.catalog import disk_price, disk_types, regions
    from tpuctl.view.tables import print_table

    rates = {
        name: {kind: disk_price(kind, name) for kind in disk_types()}
        for name in ([region] if region else regions())
    }
    rows = [
        {"region": name, **{kind: rate.amount if rate else None for kind, rate in prices.items()}}
        for name, prices in rates.items()
    ]
    rows = sort_rows(rows, sort, limit, {name: field(name) for name in ("region", *disk_types())})
    available = [rate for prices in rates.values() for rate in prices.values() if rate is not None]
    read = available[0].read if available else ""
    general = sorted(
        {
            kind
            for prices in rates.values()
            for kind, rate in prices.items()
            if rate and rate.is_general
        }
    )

    def show() -> None:
        if not available:
            print(f"No disk prices are published for {region}.")
            return
        print_table(
            ("region", *disk_types()),
            [(str(row["region"]), *(_money(row[kind]) for kind in disk_types())) for row in rows],
            numbers=disk_types(),
        )
        print(f"US dollars per GB per month, prices of {read}.")
        if general:
            print(f"{', '.join(general)}: only the price of us-central1 is published.")

    state.answer({"as_of": read, "general": general, "disks": rows}, show)


def storage_prices(state: State, region: str, sort: str, limit: int | None) -> None:
    """Buckets in TPU regions, dual-regions and multi-regions; with traffic to one region."""
    from tpuctl.catalog import read_date, regions, storage_locations, storage_price, traffic_price
    from tpuctl.view.tables import print_table

    joint = [location for location in storage_locations() if "-" not in location]
    rows = []
    for place in [*regions(), *joint]:
        storage, traffic = storage_price(place), traffic_price(place, region) if region else None
        rows.append(
            {
                "location": place,
                "gb_month": storage.amount if storage else None,
                "traffic_gb": traffic.amount if traffic else None,
            }
        )
    columns = ["location", "per GB per month"]
    if region:
        rows.sort(key=lambda row: (row["traffic_gb"] is None, row["traffic_gb"], row["location"]))
        columns.append(f"per GB read from {region}")
    rows = sort_rows(
        rows,
        sort,
        limit,
        {
            "location": field("location"),
            "price": field("gb_month"),
            **({"traffic": field("traffic_gb")} if region else {}),
        },
    )

    def show() -> None:
        print_table(
            columns,
            [
                (str(row["location"]), _money(row["gb_month"]), _money(row["traffic_gb"]))[
                    : len(columns)
                ]
                for row in rows
            ],
            numbers=columns[1:],
        )
        print(f"US dollars for the Standard class, prices of {read_date()}.")

    state.answer({"as_of": read_date(), "region": region or None, "storage": rows}, show)


def _money(amount: Any) -> str:
    from tpuctl.units import dollars

    return "-" if amount is None else dollars(float(amount))
