"""The command `quota`: what a type counts against, and how much of it a project has left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from tpuctl.cli.catalog.selection import (
    CapacityName,
    Limit,
    LiveProject,
    Regions,
    Sort,
    TypeToo,
    Zones,
    asked_live,
    capacities,
    chosen,
    field,
    in_order,
    then,
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
            help="A TPU type; without one every limit is listed.",
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
        bool, typer.Option("--live", help="Ask how much is allowed, used, and left, zone by zone.")
    ] = False,
    project: LiveProject = "",
    type_too: TypeToo = "",
) -> None:
    """Show which limits nodes of a type count against, and how many still fit with --live.

    Example: tpuctl quota v3-8 --live --project my-project
    """
    from tpuctl.cli.suggestions import require_type

    state: State = context.obj
    name = (accelerator or type_too).lower()
    require_type(name)
    # Flex-start nodes count as spot ones do.
    spot = capacities(capacity) != ("on-demand",) if capacity else None
    if live or project:
        _live(state, name, zone, region, spot, sort, limit, project)
        return
    if zone or region:
        chosen(types=name, zone=zone, region=region)  # for its refusals: limits are alike anywhere
    if name:
        _of_type(state, name, spot, sort, limit)
    else:
        _of_all(state, spot, sort, limit)


def _of_type(state: State, name: str, spot: bool | None, sort: str, limit: int | None) -> None:
    from tpuctl.catalog import accelerator_type
    from tpuctl.view.tables import print_rows
    from tpuctl.view.text_wrapping import wrapped

    known = accelerator_type(name)
    assert known is not None
    rows = in_order(_limit_rows(known, spot), sort, limit, _keys())
    shown = [{**row, "per_node": f"{row['per_node']} {row['unit']}"} for row in rows]

    def show() -> None:
        if not known.in_tpu_api:
            print(f"{name} is offered through Compute Engine or GKE alone: Cloud TPU limits none.")
        if rows:
            print_rows(shown, {"capacity": "capacity", "quota": "quota", "per_node": "per node"})
        for sentence in _usual_sentences(known, spot):
            print(wrapped(sentence, WIDTH))
        if known.in_tpu_api:
            _then_live(state, name)

    state.answer({"type": name, "limits": rows, "live": None}, show)


def _limit_rows(known: AcceleratorType, spot: bool | None) -> list[Row]:
    from tpuctl.catalog import quota_limits, usual_quota

    rows: list[Row] = []
    for capacity, is_spot in CAPACITIES.items():
        if spot not in (None, is_spot):
            continue
        rows += (
            {
                "capacity": capacity,
                "quota": one.id,
                "scope": one.scope,
                "unit": one.unit,
                "per_node": one.amount(known),
                "default": usual_quota(known, is_spot) if one.scope == "zone" else None,
            }
            for one in quota_limits(known, is_spot)
        )
    if rows:
        rows.append(
            {
                "capacity": "any",
                "quota": ADDRESSES,
                "scope": "region",
                "unit": "addresses" if known.workers > 1 else "address",
                "per_node": known.workers,
                "default": None,
            }
        )
    return rows


def _usual_sentences(known: AcceleratorType, spot: bool | None) -> list[str]:
    from tpuctl.catalog import usual_quota

    if not known.in_tpu_api:
        return []
    told = [f"{ADDRESSES} is Compute Engine's; with network.ssh internal or iap none is taken."]
    usual = [
        f"{amount} {'spot' if is_spot else 'on demand'}"
        for is_spot in CAPACITIES.values()
        if spot in (None, is_spot) and (amount := usual_quota(known, is_spot)) is not None
    ]
    if usual:
        told.append(
            f"A new project is said to have {' and '.join(usual)} in a zone; many have less."
        )
    return told


def _of_all(state: State, spot: bool | None, sort: str, limit: int | None) -> None:
    """Every limit of Cloud TPU, with the types that count against it."""
    from tpuctl.catalog import accelerator_types
    from tpuctl.view.tables import print_rows

    by_limit: dict[tuple[str, str], Row] = {}
    pairs: dict[tuple[str, ...], Row] = {}
    for one in accelerator_types().values():
        mine = [row for row in _limit_rows(one, spot) if row["quota"] != ADDRESSES]
        for row in mine:
            kept = by_limit.setdefault((row["quota"], row["scope"]), {**row, "per_node": None})
            kept.setdefault("types", []).append(one.name)
        stems = {row["capacity"]: row["quota"].partition("PerProject")[0] for row in mine}
        if stems:
            pairs.setdefault(
                tuple(stems.values()),
                {
                    "types": one.name,
                    "on-demand": stems.get("on-demand"),
                    "spot": stems.get("spot"),
                    "unit": mine[0]["unit"],
                    "count": 0,
                },
            )["count"] += 1
    rows = in_order(by_limit.values(), sort, limit, _keys())
    shown = [
        {**row, "types": f"{row['types']}{'+' if row['count'] > 1 else ''}"}
        for row in pairs.values()
    ]
    columns = {"types": "type", "on-demand": "on demand", "spot": "spot", "unit": "in"}
    if spot is not None:
        del columns["on-demand" if spot else "spot"]

    def show() -> None:
        print_rows(shown, columns)
        print("+ stands for larger ones too. Each name is short for two limits:")
        print("TPUV3sPerProjectPerZoneForTPUAPI and TPUV3sPerProjectPerRegionForTPUAPI.")
        then(state, "What one node takes:", "tpuctl quota v3-8")

    state.answer({"type": None, "limits": rows, "live": None}, show)


def _keys() -> dict[str, Any]:
    return {
        "quota": field("quota"),
        "capacity": field("capacity"),
        "scope": field("scope"),
        "per-node": field("per_node"),
        "default": field("default"),
    }


def _live(
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
    from tpuctl.view.text_wrapping import wrapped

    tpuctl = asked_live(state, project)
    if not name:
        if not state.stack_file.exists() or project:
            raise Usage(
                "Which type?",
                "--live counts nodes of one type: none is named",
                hint="For example\n"
                f"    {state.typed_anywhere} quota v3-8 --live"
                + (f" --project {project}" if project else ""),
            )
        name = tpuctl.stack.file.tpu.type
    choice = chosen(types=name, zone=zone, region=region)
    if not choice.types:
        where = zone or region
        raise Usage(
            "TPU type not offered in zone",
            f"{name} is not offered in {where}",
            hint=f"See where it is:\n    tpuctl zones --type {name}",
            where="--zone" if zone else "--region",
        )
    (known,) = choice.types
    if not known.in_tpu_api:
        raise Usage(
            "No quota of Cloud TPU",
            f"{name} is offered through Compute Engine or GKE alone",
            hint="Their quotas are in the console, under IAM & Admin.",
        )
    found, problem = state.wait_for(
        read_room(tpuctl.cloud, known, choice.zones_of(known), tpuctl.emit)
    )
    rooms = [one for one in found if spot is None or (one.capacity == "spot") is spot]
    rows = in_order(
        [_room_row(one) for one in rooms],
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
    best = next((one for one in rooms if one.nodes == 0), rooms[0])
    more = {"url": console(tpuctl.project), "command": asking(tpuctl.project, best)}
    unread = [problem] if problem else []

    def show() -> None:
        shown = [
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
        print_rows(shown, columns, numbers=("limit", "usage", "nodes"))
        print(f"In {rooms[0].unit}; one {name} takes {rooms[0].takes}. Quota is no capacity.")
        for one in unread:
            print(wrapped(f"External addresses are not counted: {one}.", WIDTH))
        print(f"\nTo ask for more:\n    {more['url']}")
        for line in more["command"].split(" --"):
            lead = "    " if line.startswith("gcloud") else "        --"
            last = more["command"].endswith(line)
            print(f"{lead}{line}{'' if last else ' ' + chr(92)}")
        first = next((row for row in rows if row["nodes"]), None)
        if first is not None:
            then(state, "What it costs there:", f"tpuctl prices {name} --zone {first['zone']}")

    data = {
        "type": name,
        "limits": _limit_rows(known, spot),
        "live": {"project": tpuctl.project, "zones": rows, "unavailable": unread, "increase": more},
    }
    state.answer(data, show)


def _room_row(one: Room) -> Row:
    """A `limit` of null is no limit where `limit_known`, and an unknown one otherwise."""
    is_bound = one.allowed is not None and one.allowed != float("inf")
    return {
        "zone": one.zone,
        "capacity": one.capacity,
        "quota": one.limit,
        "unit": one.unit,
        "per_node": one.takes,
        "limit": one.allowed if is_bound else None,
        "limit_known": one.allowed is not None,
        "usage": one.used,
        "nodes": one.nodes,
        "limited_by": one.bound or None,
    }


def _amount(allowed: float | None, is_known: bool) -> str:
    if not is_known:
        return "?"
    return "no limit" if allowed is None else f"{allowed:g}"


def _nodes(nodes: int | None, is_known: bool) -> str:
    if nodes is None:
        return "any" if is_known else "?"
    return str(nodes)


def console(project: str) -> str:
    """The page of the Google Cloud console where quota is seen and asked for."""
    where = "https://console.cloud.google.com/iam-admin/quotas"
    return f"{where}?service=tpu.googleapis.com&project={quote(project)}"


def asking(project: str, room: Room) -> str:
    """The command that asks for room for one node more."""
    return (
        f"gcloud quotas preferences create --project={project} --service=tpu.googleapis.com"
        f" --quota-id={room.limit} --dimensions=zone={room.zone}"
        f" --preferred-value={room.preferred}"
    )


def _then_live(state: State, name: str) -> None:
    then(
        state,
        "How many nodes a project has room for, and how to ask for more:",
        f"{state.typed_anywhere} quota {name} --live --project my-project",
    )
