"""`prices` for machines, disks and storage."""

from __future__ import annotations

from tpuctl.cli import responses
from tpuctl.cli.catalog.selection import Fields, answer_rows
from tpuctl.cli.parameters.options import Order
from tpuctl.cli.state import State
from tpuctl.view.lists import DiskPrice, MachinePrice, StoragePrice


def machine_prices(state: State, region: str, order: Order) -> None:
    """In one region, or each in its cheapest region."""
    from tpuctl.catalog import machine_price, machine_types, regions

    rows: list[Fields] = []
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
    rows = order.apply(MachinePrice, rows)
    cheapest = "" if region else ", each in its cheapest region"
    note = f"US dollars per hour without disks{cheapest}, prices of {read}; spot prices vary."
    answer_rows(
        state,
        MachinePrice,
        lambda: responses.catalog.MachinePrices,
        {"as_of": read, "machines": rows},
        rows,
        [note] if rows else [f"No machine prices are published for {region}."],
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
    rows = order.apply(DiskPrice, rows)
    available = [(kind, rate) for prices in rates.values() for kind, rate in prices.items() if rate]
    read = available[0][1].read if available else ""
    general = sorted({kind for kind, rate in available if rate.is_general})
    sentences = [f"US dollars per GB per month, prices of {read}."]
    if general:
        sentences.append(f"{', '.join(general)}: only the price of us-central1 is published.")
    answer_rows(
        state,
        DiskPrice,
        lambda: responses.catalog.DiskPrices,
        {"as_of": read, "general": general, "disks": rows},
        rows if available else [],
        sentences if available else [f"No disk prices are published for {region}."],
    )


def storage_prices(state: State, region: str, order: Order) -> None:
    """Buckets in TPU regions, dual-regions and multi-regions; with traffic to one region."""
    from tpuctl.catalog import read_date, regions, storage_locations, storage_price, traffic_price

    rows: list[Fields] = []
    for place in (*regions(), *(name for name in storage_locations() if "-" not in name)):
        storage, traffic = storage_price(place), traffic_price(place, region) if region else None
        rows.append(
            {
                "location": place,
                "gb_month": storage.amount if storage else None,
                "traffic_gb": traffic.amount if traffic else None,
            }
        )
    if region:
        rows.sort(key=lambda row: (row["traffic_gb"] is None, row["traffic_gb"], row["location"]))
    rows = order.apply(StoragePrice, rows)
    answer_rows(
        state,
        StoragePrice,
        lambda: responses.catalog.StoragePrices,
        {"as_of": read_date(), "region": region or None, "storage": rows},
        rows,
        [f"US dollars for the Standard class, prices of {read_date()}."],
        without=() if region else ("traffic_gb",),
    )
