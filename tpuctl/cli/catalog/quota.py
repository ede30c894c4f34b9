"""The `quota` command: the limits that a type counts against, and what a project has left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from tpuctl.cli.catalog.selection import (
    CapacityName,
    HiddenType,
    Limit,
    LiveProject,
    Regions,
    Sort,
    Zones,
    capacities,
    field,
    live_client,
    select,
    sort_rows,
    suggest,
)
from tpuctl.cli.completion.candidates import complete_types
from tpuctl.cli.state import State

if TYPE_CHECKING:
    from tpuctl.catalog import AcceleratorType
    from tpuctl.model.quota_room import Room

__all__ = ["quota"]

Row = dict[str, Any]
CAPACITIES = {"on-demand": False, "spot": True}
ADDRESSES = "IN_USE_ADDRESSES"
WIDTH = 80


def quota(
    context: typer.Context,
    accelerator: Annotated[
        str,
        typer.Argument(
            metavar="[TYPE]",
            help="TPU type (default: list all limits).",
            autocompletion=complete_types,
            show_default=False,
        ),
    ] = "",
    zone: Zones = "",
    region: Regions = "",
    capacity: CapacityName = "",
    sort: Sort = "",
    limit: Limit = None,
    live: Annotated[
        bool, typer.Option("--live", help="Query limits and usage of a project, zone by zone.")
    ] = False,
    project: LiveProject = "",
    type_too: HiddenType = "",
) -> None:
    """Show the limits that nodes of a type count against; with --live, how many still fit.

    Example: tpuctl quota v3-8 --live --project my-project
    """
    from tpuctl.cli.suggestions import require_type

    state: State = context.obj
    name = (accelerator or type_too).lower()
    require_type(name)
    # Flex-start nodes count like spot nodes.
    spot = capacities(capacity) != ("on-demand",) if capacity else None
    if live or project:
        _show_live(state, name, zone, region, spot, sort, limit, project)
        return
    if zone or region:
        select(
            types=name, zone=zone, region=region
        )  # validates the names; limits are the same everywhere
    if name:
        _show_type(state, name, spot, sort, limit)
    else:
        _show_all(state, spot, sort, limit)


def _show_type(state: State, name: str, spot: bool | None, sort: str, limit: int | None) -> None:
    from tpuctl.catalog import accelerator_type
    from tpuctl.view.tables import print_rows
    from tpuctl.view.text_wrapping import wrap

    accelerator_info = accelerator_type(name)
    assert accelerator_info is not None
    rows = sort_rows(_limit_rows(accelerator_info, spot), sort, limit, _sort_keys())
    formatted = [{**row, "per_node": f"{row['per_node']} {row['unit']}"} for row in rows]

    def show() -> None:
        if not accelerator_info.in_tpu_api:
            print(f"{name} is offered through Compute Engine or GKE only: no Cloud TPU limits.")
        if rows:
            print_rows(
                formatted, {"capacity": "capacity", "quota": "quota", "per_node": "per node"}
            )
        for sentence in _notes(accelerator_info, spot):
            print(wrap(sentence, WIDTH))
        if accelerator_info.in_tpu_api:
            _suggest_live(state, name)

    state.answer({"type": name, "limits": rows, "live": None}, show)


def _limit_rows(accelerator: AcceleratorType, spot: bool | None) -> list[Row]:
    from tpuctl.catalog import quota_limits, usual_quota

    rows: list[Row] = []
    for capacity, is_spot in CAPACITIES.items():
        if spot not in (None, is_spot):
            continue
        rows += (
            {
                "capacity": capacity,
                "quota": quota_limit.id,
                "scope": quota_limit.scope,
                "unit": quota_limit.unit,
                "per_node": quota_limit.amount(accelerator),
                "default": usual_quota(accelerator, is_spot)
                if quota_limit.scope == "zone"
                else None,
            }
            for quota_limit in quota_limits(accelerator, is_spot)
        )
    if rows:
        rows.append(
            {
                "capacity": "any",
                "quota": ADDRESSES,
                "scope": "region",
                "unit": "addresses" if accelerator.workers > 1 else "address",
                "per_node": accelerator.workers,
                "default": None,
            }
        )
    return rows


def _notes(accelerator: AcceleratorType, spot: bool | None) -> list[str]:
    from tpuctl.catalog import usual_quota

    if not accelerator.in_tpu_api:
        return []
    sentences = [f"{ADDRESSES} is a Compute Engine limit; network.ssh internal or iap uses none."]
    usual = [
        f"{amount} {'spot' if is_spot else 'on demand'}"
        for is_spot in CAPACITIES.values()
        if spot in (None, is_spot) and (amount := usual_quota(accelerator, is_spot)) is not None
    ]
    if usual:
        sentences.append(
            f"New projects typically get {' and '.join(usual)} per zone; many get less."
        )
    return sentences


def _show_all(state: State, spot: bool | None, sort: str, limit: int | None) -> None:
    """All Cloud TPU limits, with the types that count against them."""
    from tpuctl.catalog import accelerator_types
    from tpuctl.view.tables import print_rows

    by_limit: dict[tuple[str, str], Row] = {}
    pairs: dict[tuple[str, ...], Row] = {}
    for accelerator in accelerator_types().values():
        limit_rows = [row for row in _limit_rows(accelerator, spot) if row["quota"] != ADDRESSES]
        for row in limit_rows:
            entry = by_limit.setdefault((row["quota"], row["scope"]), {**row, "per_node": None})
            entry.setdefault("types", []).append(accelerator.name)
        stems = {row["capacity"]: row["quota"].partition("PerProject")[0] for row in limit_rows}
        if stems:
            pairs.setdefault(
                tuple(stems.values()),
                {
                    "types": accelerator.name,
                    "on-demand": stems.get("on-demand"),
                    "spot": stems.get("spot"),
                    "unit": limit_rows[0]["unit"],
                    "count": 0,
                },
            )["count"] += 1
    rows = sort_rows(by_limit.values(), sort, limit, _sort_keys())
    formatted = [
        {**row, "types": f"{row['types']}{'+' if row['count'] > 1 else ''}"}
        for row in pairs.values()
    ]
    columns = {"types": "type", "on-demand": "on demand", "spot": "spot", "unit": "unit"}
    if spot is not None:
        del columns["on-demand" if spot else "spot"]

    def show() -> None:
        print_rows(formatted, columns)
        print("+ includes larger types. Each name stands for two limits:")
        print("TPUV3sPerProjectPerZoneForTPUAPI and TPUV3sPerProjectPerRegionForTPUAPI.")
        suggest(state, "To see what one node needs:", "tpuctl quota v3-8")

    state.answer({"type": None, "limits": rows, "live": None}, show)


def _sort_keys() -> dict[str, Any]:
    return {
        "quota": field("quota"),
        "capacity": field("capacity"),
        "scope": field("scope"),
        "per-node": field("per_node"),
        "default": field("default"),
    }


def _show_live(
    state: State,
    name: str,
    zone: str,
    region: str,
    spot: bool | None,
    sort: str,
    limit: int | None,
    project: str,
) -> None:
    from tpuctl.errors import Usage
    from tpuctl.flows.quota import read_room
    from tpuctl.view.tables import print_rows
    from tpuctl.view.text_wrapping import wrap

    tpuctl = live_client(state, project)
    if not name:
        if not state.stack_file.exists() or project:
            raise Usage(
                "Missing TPU type",
                "--live counts nodes of one type",
                hint="For example\n"
                f"    {state.cloud_prefix} quota v3-8 --live"
                + (f" --project {project}" if project else ""),
            )
        name = tpuctl.stack.file.tpu.type
    choice = select(types=name, zone=zone, region=region)
    if not choice.types:
        where = zone or region
        raise Usage(
            "TPU type not offered in zone",
            f"{name} is not offered in {where}",
            hint=f"To list its zones:\n    tpuctl zones --type {name}",
            where="--zone" if zone else "--region",
        )
    (accelerator,) = choice.types
    if not accelerator.in_tpu_api:
        raise Usage(
            "No Cloud TPU quota",
            f"{name} is offered through Compute Engine or GKE only",
            hint="See their quotas in the console, under IAM & Admin.",
        )
    all_rooms, problem = state.wait_for(
        read_room(tpuctl.cloud, accelerator, choice.zones_of(accelerator), tpuctl.emit)
    )
    rooms = [room for room in all_rooms if spot is None or (room.capacity == "spot") is spot]
    rows = sort_rows(
        [_room_row(room) for room in rooms],
        sort,
        limit,
        {
            "zone": field("zone"),
            "capacity": field("capacity"),
            "limit": field("limit"),
            "usage": field("usage"),
            "nodes": field("nodes"),
        },
    )
    best = next((room for room in rooms if room.nodes == 0), rooms[0])
    increase = {
        "url": console_url(tpuctl.project),
        "command": increase_command(tpuctl.project, best),
    }
    unavailable = [problem] if problem else []

    def show() -> None:
        formatted = [
            {
                **row,
                "limit": _amount(row["limit"], row["limit_known"]),
                "usage": f"{row['usage']:g}",
                "nodes": _nodes(row["nodes"], row["limit_known"]),
            }
            for row in rows
        ]
        columns = {
            "zone": "zone",
            "capacity": "capacity",
            "limit": "limit",
            "usage": "usage",
            "nodes": "nodes that fit",
            "limited_by": "limited by",
        }
        print_rows(formatted, columns, numbers=("limit", "usage", "nodes"))
        print(
            f"In {rooms[0].unit}; one {name} needs {rooms[0].takes}. "
            "Quota does not guarantee capacity."
        )
        for reason in unavailable:
            print(wrap(f"External addresses are not checked: {reason}.", WIDTH))
        print(f"\nTo request more:\n    {increase['url']}")
        for line in increase["command"].split(" --"):
            lead = "    " if line.startswith("gcloud") else "        --"
            last = increase["command"].endswith(line)
            print(f"{lead}{line}{'' if last else ' ' + chr(92)}")
        first = next((row for row in rows if row["nodes"]), None)
        if first is not None:
            suggest(
                state, "To see its price there:", f"tpuctl prices {name} --zone {first['zone']}"
            )

    data = {
        "type": name,
        "limits": _limit_rows(accelerator, spot),
        "live": {
            "project": tpuctl.project,
            "zones": rows,
            "unavailable": unavailable,
            "increase": increase,
        },
    }
    state.answer(data, show)


def _room_row(room: Room) -> Row:
    """A `limit` of null is no limit where `limit_known`, and an unknown one otherwise."""
    is_bound = room.allowed is not None and room.allowed != float("inf")
    return {
        "zone": room.zone,
        "capacity": room.capacity,
        "quota": room.limit,
        "unit": room.unit,
        "per_node": room.takes,
        "limit": room.allowed if is_bound else None,
        "limit_known": room.allowed is not None,
        "usage": room.used,
        "nodes": room.nodes,
        "limited_by": room.bound or None,
    }


def _amount(allowed: float | None, is_known: bool) -> str:
    if not is_known:
        return "?"
    return "no limit" if allowed is None else f"{allowed:g}"


def _nodes(nodes: int | None, is_known: bool) -> str:
    if nodes is None:
        return "any" if is_known else "?"
    return str(nodes)


def console_url(project: str) -> str:
    """The quota page of the Google Cloud console."""
    where = "https://console.cloud.google.com/iam-admin/quotas"
    return f"{where}?service=tpu.googleapis.com&project={quote(project)}"


def increase_command(project: str, room: Room) -> str:
    """The command that requests quota for one more node."""
    return (
        f"gcloud quotas preferences create --project={project} --service=tpu.googleapis.com"
        f" --quota-id={room.limit} --dimensions=zone={room.zone}"
        f" --preferred-value={room.preferred}"
    )


def _suggest_live(state: State, name: str) -> None:
    suggest(
        state,
        "To see how many nodes fit in a project, and how to request more:",
        f"{state.cloud_prefix} quota {name} --live --project my-project",
    )
