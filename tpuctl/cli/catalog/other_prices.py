"""`prices` for machines, disks and storage."""

from __future__ import annotations

from tpuctl.cli import responses
from tpuctl.cli.catalog.selection import Order, Row, answer_rows, columns
from tpuctl.cli.state import State


def machine_prices(state: State, region: str, order: Order) -> None:
    """In one region, or each in its cheapest region."""
    from tpuctl.catalog import machine_price, machine_types, regions

    rows: list[Row] = []
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
    rows = order.apply(rows, "machine-type vcpus memory-gb region price spot", price="on_demand")
    cheapest = "" if region else ", each in its cheapest region"
    note = f"US dollars per hour without disks{cheapest}, prices of {read}; spot prices vary."
    answer_rows(
        state,
        lambda: responses.catalog.MachinePrices,
        {"as_of": read, "machines": rows},
        [{**row, "memory_gb": f"{row['memory_gb']:g}"} for row in rows],
        columns(
            "machine_type vcpus memory_gb region on_demand spot", vcpus="vCPUs", memory_gb="GB"
        ),
        [note] if rows else [f"No machine prices are published for {region}."],
        numbers=("memory_gb", "spot"),
    )


def disk_prices(state: State, region: str, order: Order) -> None:
    from tpuctl.catalog import disk_price, disk_types, regions

    kinds = disk_types()
    rates = {
        name: {kind: disk_price(kind, name) for kind in kinds}
        for name in ([region] if region else regions())
    }
    rows = [
        {"region": name, **{kind: rate.amount if rate else None for kind, rate in prices.items()}}
        for name, prices in rates.items()
    ]
    rows = order.apply(rows, " ".join(("region", *kinds)), **{kind: kind for kind in kinds})
    available = [(kind, rate) for prices in rates.values() for kind, rate in prices.items() if rate]
    read = available[0][1].read if available else ""
    general = sorted({kind for kind, rate in available if rate.is_general})
    sentences = [f"US dollars per GB per month, prices of {read}."]
    if general:
        sentences.append(f"{', '.join(general)}: only the price of us-central1 is published.")
    answer_rows(
        state,
        lambda: responses.catalog.DiskPrices,
        {"as_of": read, "general": general, "disks": rows},
        rows if available else [],
        {name: name for name in ("region", *kinds)},
        sentences if available else [f"No disk prices are published for {region}."],
        numbers=kinds,
    )


def storage_prices(state: State, region: str, order: Order) -> None:
    """Buckets in TPU regions, dual-regions and multi-regions; with traffic to one region."""
    from tpuctl.catalog import read_date, regions, storage_locations, storage_price, traffic_price

    rows: list[Row] = []
    for place in (*regions(), *(name for name in storage_locations() if "-" not in name)):
        storage, traffic = storage_price(place), traffic_price(place, region) if region else None
        rows.append(
            {
                "location": place,
                "gb_month": storage.amount if storage else None,
                "traffic_gb": traffic.amount if traffic else None,
            }
        )
    keys, fields = "location price", "location gb_month"
    if region:
        rows.sort(key=lambda row: (row["traffic_gb"] is None, row["traffic_gb"], row["location"]))
        keys, fields = f"{keys} traffic", f"{fields} traffic_gb"
    rows = order.apply(rows, keys, price="gb_month", traffic="traffic_gb")
    answer_rows(
        state,
        lambda: responses.catalog.StoragePrices,
        {"as_of": read_date(), "region": region or None, "storage": rows},
        rows,
        columns(fields, gb_month="per GB per month", traffic_gb=f"per GB read from {region}"),
        [f"US dollars for the Standard class, prices of {read_date()}."],
        numbers=("gb_month", "traffic_gb"),
    )
