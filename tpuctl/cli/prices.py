"""The command `prices`: of nodes, and of what stands beside them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tpuctl.cli.app import State
from tpuctl.cli.known import regions, require_region, require_type, require_zone

__all__ = ["prices"]


def prices(
    context: typer.Context,
    accelerator: Annotated[str, typer.Argument(help="A TPU type.")] = "",
    machines: Annotated[
        bool, typer.Option("--machines", help="Machine types of controllers instead.")
    ] = False,
    disks: Annotated[bool, typer.Option("--disks", help="Disks instead, by region.")] = False,
    storage: Annotated[
        bool, typer.Option("--storage", help="Buckets instead, by location, and their traffic.")
    ] = False,
    zone: Annotated[str, typer.Option("--zone", help="Only in this zone, or its region.")] = "",
    region: Annotated[str, typer.Option("--region", help="Only in this region.")] = "",
) -> None:
    """Show what a node of a type costs an hour, cheapest zone first, or what stands beside it.

    Example: tpuctl prices v3-8
    """
    from tpuctl.catalog import region_of
    from tpuctl.errors import Usage

    state: State = context.obj
    require_type(accelerator)
    require_zone(zone)
    require_region(region)
    if zone and region not in ("", region_of(zone)):
        raise Usage("Options contradict", f"{zone} does not lie in {region}", hint="Give one.")
    if [bool(accelerator), machines, disks, storage].count(True) != 1:
        raise Usage(
            "Nothing or too much to show",
            "prices are shown of one thing at a time",
            hint="Name a TPU type, or one of --machines, --disks and --storage:\n"
            "    tpuctl prices v3-8\n    tpuctl prices --machines --zone europe-west4-a",
        )
    where = region or (region_of(zone) if zone else "")
    if machines:
        _machine_prices(state, where)
    elif disks:
        _disk_prices(state, where)
    elif storage:
        _storage_prices(state, where)
    else:
        _node_prices(state, accelerator, zone, where)


def _node_prices(state: State, accelerator: str, zone: str, region: str) -> None:
    from tpuctl.catalog import accelerator_type, node_price, read_date, region_of
    from tpuctl.view.tables import print_table

    wanted = accelerator_type(accelerator)
    assert wanted is not None
    rows = []
    flex_read = ""
    for one in wanted.zones:
        if (zone and one != zone) or (region and region_of(one) != region):
            continue
        demand, spot = node_price(wanted, one), node_price(wanted, one, capacity="spot")
        flex = node_price(wanted, one, capacity="flex-start")
        flex_read = flex.read if flex else flex_read
        rows.append(
            {
                "zone": one,
                "on_demand": demand.per_hour if demand else None,
                "spot": spot.per_hour if spot else None,
                "flex_start": flex.per_hour if flex else None,
            }
        )
    rows.sort(key=lambda row: (row["on_demand"] is None, row["on_demand"], row["zone"]))
    columns = {"on_demand": "on demand", "spot": "spot", "flex_start": "flex-start"}
    if not flex_read:
        del columns["flex_start"]

    def show() -> None:
        print_table(
            ("zone", *columns.values()),
            [(str(row["zone"]), *(_money(row[name]) for name in columns)) for row in rows],
            numbers=tuple(columns.values()),
        )
        print(f"US dollars an hour for one {accelerator}, prices of {read_date()}; spot floats.")
        if flex_read:
            print(f"Flex-start as read on {flex_read}; for regions without a figure ask Google.")

    state.answer({"type": accelerator, "read": read_date(), "prices": rows}, show)


def _machine_prices(state: State, region: str) -> None:
    """Of one region, or in the cheapest one each."""
    from tpuctl.catalog import machine_price, machine_types
    from tpuctl.view.tables import print_table

    rows: list[dict[str, Any]] = []
    read = ""
    for machine in machine_types().values():
        offers = [
            (price, one)
            for one in ([region] if region else regions())
            if (price := machine_price(machine, one)) is not None
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
    columns = ("machine type", "vCPUs", "GB", "region", "on demand", "spot")

    def show() -> None:
        if not rows:
            print(f"No prices of machines are published for {region}.")
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
        cheapest = "" if region else ", where each is cheapest"
        print(f"US dollars an hour without disks{cheapest}, prices of {read}; spot floats.")

    state.answer({"read": read, "machines": rows}, show)


def _disk_prices(state: State, region: str) -> None:
    from tpuctl.catalog import disk_price, disk_types
    from tpuctl.view.tables import print_table

    rates = {
        one: {kind: disk_price(kind, one) for kind in disk_types()}
        for one in ([region] if region else regions())
    }
    rows = [
        {"region": one, **{kind: rate.amount if rate else None for kind, rate in found.items()}}
        for one, found in rates.items()
    ]
    known = [rate for found in rates.values() for rate in found.values() if rate is not None]
    read = known[0].read if known else ""
    general = sorted(
        {
            kind
            for found in rates.values()
            for kind, rate in found.items()
            if rate and rate.is_general
        }
    )

    def show() -> None:
        if not known:
            print(f"No prices of disks are published for {region}.")
            return
        print_table(
            ("region", *disk_types()),
            [(str(row["region"]), *(_money(row[kind]) for kind in disk_types())) for row in rows],
            numbers=disk_types(),
        )
        print(f"US dollars a GB and month, prices of {read}.")
        if general:
            print(f"Of {', '.join(general)} one general figure is public, of us-central1.")

    state.answer({"read": read, "general": general, "disks": rows}, show)


def _storage_prices(state: State, region: str) -> None:
    """Of buckets where TPUs are, and in dual- and multi-regions; with traffic to one region."""
    from tpuctl.catalog import read_date, storage_locations, storage_price, traffic_price
    from tpuctl.view.tables import print_table

    joint = [one for one in storage_locations() if "-" not in one]
    rows = []
    for one in [*regions(), *joint]:
        kept, traffic = storage_price(one), traffic_price(one, region) if region else None
        rows.append(
            {
                "location": one,
                "gb_month": kept.amount if kept else None,
                "traffic_gb": traffic.amount if traffic else None,
            }
        )
    columns = ["location", "a GB and month"]
    if region:
        rows.sort(key=lambda row: (row["traffic_gb"] is None, row["traffic_gb"], row["location"]))
        columns.append(f"a GB read from {region}")

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

    state.answer({"read": read_date(), "region": region or None, "storage": rows}, show)


def _money(amount: Any) -> str:
    from tpuctl.catalog import dollars

    return "-" if amount is None else dollars(float(amount))
