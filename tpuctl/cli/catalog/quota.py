"""The `quota` command: the limits that a type counts against, and what a project has left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tpuctl.cli import responses
from tpuctl.cli.catalog.selection import (
    CapacityName,
    Fields,
    HiddenType,
    LiveProject,
    Regions,
    Zones,
    answer_rows,
    capacities,
    live_client,
    select,
)
from tpuctl.cli.completion.candidates import complete_types
from tpuctl.cli.parameters.option_groups import expand_option_groups
from tpuctl.cli.parameters.options import Order, sorted_by
from tpuctl.cli.state import State
from tpuctl.view.lists import Limit, LimitPair, ZoneQuota

if TYPE_CHECKING:
    from tpuctl.api.interface import Tpuctl
    from tpuctl.catalog import AcceleratorType
    from tpuctl.model.capacity.quota_room import Room

CAPACITIES = {"on-demand": False, "spot": True}
ADDRESSES = "IN_USE_ADDRESSES"
SUFFIXES = {
    "tpu": ("PerProjectPerZoneForTPUAPI", "PerProjectPerRegionForTPUAPI"),
    "compute": ("-per-project-region",),
}
INTRODUCTIONS = {
    "tpu": "Names of the Cloud TPU API stand for two limits",
    "compute": "Names of Compute Engine stand for one",
}
POOLS = "Each API has its own quota pools: quota at one cannot be used at the other."


@expand_option_groups
def quota(
    context: typer.Context,
    accelerator: Annotated[
        str,
        typer.Argument(
            metavar="[TYPE]",
            help="TPU type or generation (default: list all limits).",
            autocompletion=complete_types,
            show_default=False,
        ),
    ] = "",
    zone: Zones = "",
    region: Regions = "",
    capacity: CapacityName = "",
    *,
    order: Annotated[Order, sorted_by(lambda: (Limit, ZoneQuota))],
    live: Annotated[
        bool, typer.Option("--live", help="Query limits and usage of a project, zone by zone.")
    ] = False,
    project: LiveProject = "",
    type_too: HiddenType = "",
) -> None:
    """Show the quota limits that apply to a type at each API; with --live, how many more nodes fit.

    Example: tpuctl quota v5e-8 --live --project my-project
    """
    from tpuctl.catalog import canonical_type, generations
    from tpuctl.cli.help.suggestions import require_type
    from tpuctl.errors import Usage

    state: State = context.obj
    state.use_format(order.format)
    name = canonical_type(accelerator or type_too)
    generation = name if name in generations() else ""
    if name and not generation:
        name = require_type(name).name
    # Flex-start nodes count like spot nodes.
    spot = capacities(capacity) != ("on-demand",) if capacity else None
    if generation and (live or project):
        raise Usage(
            "Missing TPU type",
            f"--live counts nodes of one type, and {generation} has several",
            hint=f"To list them:\n    tpuctl types {generation}",
            where="TYPE",
        )
    if live or project:
        _show_live(state, live_client(state, project), name, zone, region, spot, order, project)
        return
    if zone or region:
        select(name, zone=zone, region=region)  # validates the names; limits are equal everywhere
    if name and not generation:
        _show_type(state, name, spot, order)
    else:
        _show_all(state, spot, order, generation)


def _show_type(state: State, name: str, spot: bool | None, order: Order) -> None:
    from tpuctl.catalog import accelerator_type, apis_of

    accelerator = accelerator_type(name)
    assert accelerator is not None
    rows = order.apply(Limit, _limit_rows(accelerator, spot))
    answer_rows(
        state,
        Limit,
        lambda: responses.catalog.Limits,
        {"type": name, "limits": rows, "live": None},
        rows,
        _notes(accelerator, spot),
        without=() if "compute" in apis_of(accelerator) else ("api",),
        suggestion=(
            "To see how many nodes fit in a project, and how to request more:",
            f"{state.cloud_prefix} quota {name} --live --project my-project",
        ),
    )


def _limit_rows(accelerator: AcceleratorType, spot: bool | None) -> list[Fields]:
    from tpuctl.catalog import apis_of, quota_limits, usual_quota

    rows: list[Fields] = [
        {
            "capacity": capacity,
            "api": api,
            "quota": quota_limit.id,
            "scope": quota_limit.scope,
            "unit": quota_limit.unit,
            "per_node": quota_limit.amount(accelerator),
            "default": usual_quota(accelerator, is_spot, api) if index == 0 else None,
            "tpu_family": quota_limit.family or None,
        }
        for api in apis_of(accelerator)
        for capacity, is_spot in CAPACITIES.items()
        if spot in (None, is_spot)
        for index, quota_limit in enumerate(quota_limits(accelerator, is_spot, api))
    ]
    addresses: Fields = {
        "capacity": "any",
        "api": "compute",
        "quota": ADDRESSES,
        "scope": "region",
        "unit": "addresses" if accelerator.workers > 1 else "address",
        "per_node": accelerator.workers,
        "default": None,
        "tpu_family": None,
    }
    return [*rows, addresses]


def _notes(accelerator: AcceleratorType, spot: bool | None) -> Iterator[str]:
    from tpuctl.catalog import apis_of, quota_limits, usual_quota

    yield f"{ADDRESSES} is a Compute Engine limit; network.ssh internal or iap uses none."
    for api in apis_of(accelerator):
        usual = [
            f"{amount} {'spot' if is_spot else 'on demand'}"
            for is_spot in CAPACITIES.values()
            if spot in (None, is_spot)
            and (amount := usual_quota(accelerator, is_spot, api)) is not None
        ]
        if usual:
            place = "zone" if api == "tpu" else "region at Compute Engine"
            yield f"New projects typically get {' and '.join(usual)} per {place}; many get less."
    if "compute" not in apis_of(accelerator):
        return
    (pool,) = quota_limits(accelerator, False, "compute")
    if pool.family and spot is not True:
        yield f"{pool.id} is counted for tpu_family {pool.family}."
    if spot is not False:
        yield (
            "Flex-start counts as spot; at Compute Engine it uses the quota for on-demand if that "
            "for spot is used up."
        )
    if "tpu" in apis_of(accelerator):
        yield POOLS


def _show_all(state: State, spot: bool | None, order: Order, generation: str) -> None:
    """The limits of a generation or all, with the types that count against them."""
    from tpuctl.catalog import accelerator_types

    by_limit: dict[tuple[str, str, str | None], Fields] = {}
    pairs: dict[tuple[str, ...], Fields] = {}
    for accelerator in accelerator_types().values():
        if generation not in ("", accelerator.generation):
            continue
        limit_rows = [row for row in _limit_rows(accelerator, spot) if row["quota"] != ADDRESSES]
        for row in limit_rows:
            key = row["quota"], row["scope"], row["tpu_family"]
            entry = by_limit.setdefault(key, {**row, "per_node": None})
            entry.setdefault("types", []).append(accelerator.name)
        for api in dict.fromkeys(row["api"] for row in limit_rows):
            stems = {row["capacity"]: _stem(row) for row in limit_rows if row["api"] == api}
            pairs.setdefault(
                (api, *stems.values()),
                {
                    "types": [],
                    "on_demand": stems.get("on-demand"),
                    "spot": stems.get("spot"),
                    "unit": next(row["unit"] for row in limit_rows if row["api"] == api),
                    "api": api,
                },
            )["types"].append(accelerator.name)
    rows = order.apply(Limit, list(by_limit.values()))
    by_api = sorted(pairs.values(), key=lambda row: row["api"], reverse=True)
    answer_rows(
        state,
        LimitPair,
        lambda: responses.catalog.Limits,
        {"type": None, "limits": rows, "live": None},
        by_api,
        _pair_notes(by_api),
        without={None: (), True: ("on_demand",), False: ("spot",)}[spot],
        suggestion=("To see what one node needs:", "tpuctl quota v5e-8"),
    )


def _stem(row: Fields) -> str:
    """The part of a limit's name that the limits of the zone and of the region share."""
    name: str = row["quota"]
    return name.partition("PerProject")[0].partition("-per-project")[0]


def _pair_notes(rows: Sequence[Fields]) -> Iterator[str]:
    yield "+ includes larger types."
    for api, suffixes in SUFFIXES.items():
        name = next((row["on_demand"] or row["spot"] for row in rows if row["api"] == api), None)
        if name is not None:
            limits = " and ".join(f"{name}{suffix}" for suffix in suffixes)
            yield f"{INTRODUCTIONS[api]}: {limits}."


def _show_live(
    state: State,
    tpuctl: Tpuctl,
    name: str,
    zone: str,
    region: str,
    spot: bool | None,
    order: Order,
    project: str,
) -> None:
    from tpuctl.catalog import API_NAMES
    from tpuctl.errors import Usage
    from tpuctl.flows.stack.quota import read_room
    from tpuctl.model.capacity.quota import console_url, increase_command

    if not name:
        if not state.stack_file.exists() or project:
            raise Usage(
                "Missing TPU type",
                "--live counts nodes of one type",
                hint="For example\n"
                f"    {state.cloud_prefix} quota v5e-8 --live"
                + (f" --project {project}" if project else ""),
            )
        name = tpuctl.stack.file.tpu.type
    choice = select(types=name, zone=zone, region=region)
    if not choice.types:
        where = zone or region
        raise Usage(
            "TPU type not offered in zone",
            f"{name} is not offered in {where}",
            hint=f"To list its zones:\n    tpuctl zones {name}",
            where="--zone" if zone else "--region",
        )
    (accelerator,) = choice.types
    all_rooms, problems, addresses_problem = state.wait_for(
        read_room(tpuctl.cloud, accelerator, choice.zones_of(accelerator), tpuctl.emit)
    )
    rooms = [room for room in all_rooms if spot is None or (room.capacity == "spot") is spot]
    rows = order.apply(ZoneQuota, [_room_row(room) for room in rooms])
    best = next((room for room in rooms if room.nodes == 0), rooms[0])
    increase = {
        "url": console_url(tpuctl.project, best.limit.api),
        "command": increase_command(tpuctl.project, best.limit, best.place, best.preferred),
    }
    unavailable = [*problems, *([addresses_problem] if addresses_problem else ())]
    first = next((row for row in rows if row["nodes"]), None)
    command = increase["command"].replace(" --", " \\\n        --")
    needs = {room.limit.api: f"{room.takes} {room.limit.unit}" for room in rooms}
    amounts = [f"{amount} at {API_NAMES[api]}" for api, amount in sorted(needs.items())]
    amount = " or ".join(reversed(amounts)) if len(needs) > 1 else next(iter(needs.values()))
    sentences = [
        f"One {name} needs {amount}; nodes are how many fit. Quota does not guarantee capacity."
    ]
    sentences += [POOLS] if len(needs) > 1 else []
    sentences += (f"The {problem}." for problem in problems)
    if addresses_problem:
        sentences.append(f"External addresses are not checked: {addresses_problem}.")
    answer_rows(
        state,
        ZoneQuota,
        lambda: responses.catalog.Limits,
        {
            "type": name,
            "limits": _limit_rows(accelerator, spot),
            "live": {
                "project": tpuctl.project,
                "zones": rows,
                "unavailable": unavailable,
                "increase": increase,
            },
        },
        rows,
        sentences,
        without=() if "compute" in needs else ("api",),
        suggestion=(
            "To see its price there:",
            f"tpuctl prices {name} --zone {first['zone']}",
        )
        if first
        else None,
        footer=f"\nTo request more:\n    {increase['url']}\n    {command}",
    )


def _room_row(room: Room) -> Fields:
    """A `limit` of null is no limit where `limit_known`, and an unknown one otherwise."""
    is_bound = room.allowed is not None and room.allowed != float("inf")
    return {
        "zone": room.zone,
        "capacity": room.capacity,
        "api": room.limit.api,
        "quota": room.limit.id,
        "unit": room.limit.unit,
        "per_node": room.takes,
        "limit": room.allowed if is_bound else None,
        "limit_known": room.allowed is not None,
        "usage": room.used,
        "nodes": room.nodes,
        "limited_by": room.bound or None,
    }
