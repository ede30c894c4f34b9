"""The `quota` command: the limits that a type counts against, and what a project has left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from tpuctl.cli import responses
from tpuctl.cli.catalog.selection import (
    CapacityName,
    HiddenType,
    LiveProject,
    Order,
    Regions,
    Row,
    Zones,
    answer_rows,
    capacities,
    live_client,
    select,
)
from tpuctl.cli.completion.candidates import complete_types
from tpuctl.cli.state import State

if TYPE_CHECKING:
    from tpuctl.api.interface import Tpuctl
    from tpuctl.catalog import AcceleratorType
    from tpuctl.model.quota_room import Room

__all__ = ["quota"]

CAPACITIES = {"on-demand": False, "spot": True}
ADDRESSES = "IN_USE_ADDRESSES"
UNLIMITED = "{} is offered through Compute Engine or GKE only: no Cloud TPU limits."
KEYS = "quota capacity scope per-node default"


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
    order: Order,
    live: Annotated[
        bool, typer.Option("--live", help="Query limits and usage of a project, zone by zone.")
    ] = False,
    project: LiveProject = "",
    type_too: HiddenType = "",
) -> None:
    """Show the limits that nodes of a type count against; with --live, how many still fit.

    Example: tpuctl quota v3-8 --live --project my-project
    """
    from tpuctl.catalog import generations
    from tpuctl.cli.suggestions import require_type
    from tpuctl.errors import Usage

    state: State = context.obj
    state.use_format(order.format)
    name = (accelerator or type_too).lower()
    generation = name if name in generations() else ""
    if not generation:
        require_type(name)
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
    from tpuctl.catalog import accelerator_type

    accelerator = accelerator_type(name)
    assert accelerator is not None
    rows = order.apply(_limit_rows(accelerator, spot), KEYS)
    is_limited = accelerator.in_tpu_api
    answer_rows(
        state,
        lambda: responses.catalog.Limits.model_validate(
            {"type": name, "limits": rows, "live": None}
        ),
        [{**row, "per_node": f"{row['per_node']} {row['unit']}"} for row in rows],
        {"capacity": "capacity", "quota": "quota", "per_node": "per node"},
        _notes(accelerator, spot) if is_limited else [UNLIMITED.format(name)],
        suggestion=(
            "To see how many nodes fit in a project, and how to request more:",
            f"{state.cloud_prefix} quota {name} --live --project my-project",
        )
        if is_limited
        else None,
    )


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


def _show_all(state: State, spot: bool | None, order: Order, generation: str) -> None:
    """Cloud TPU limits, of a generation or all, with the types that count against them."""
    from tpuctl.catalog import accelerator_types

    by_limit: dict[tuple[str, str], Row] = {}
    pairs: dict[tuple[str, ...], Row] = {}
    for accelerator in accelerator_types().values():
        if generation not in ("", accelerator.generation):
            continue
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
                    "number_of_types": 0,
                },
            )["number_of_types"] += 1
    rows = order.apply(by_limit.values(), KEYS)
    formatted = [
        {**row, "types": f"{row['types']}{'+' if row['number_of_types'] > 1 else ''}"}
        for row in pairs.values()
    ]
    columns = {"types": "type", "on-demand": "on demand", "spot": "spot", "unit": "unit"}
    if spot is not None:
        del columns["on-demand" if spot else "spot"]

    answer_rows(
        state,
        lambda: responses.catalog.Limits.model_validate(
            {"type": None, "limits": rows, "live": None}
        ),
        formatted,
        columns,
        _pair_notes(formatted[0]) if formatted else [UNLIMITED.format(generation)],
        suggestion=("To see what one node needs:", "tpuctl quota v3-8"),
    )


def _pair_notes(row: Row) -> list[str]:
    name = row["on-demand"] or row["spot"]
    limits = [f"{name}PerProjectPer{place}ForTPUAPI" for place in ("Zone", "Region")]
    heading = "+ includes larger types. Each name stands for two limits:"
    return [heading, f"{' and '.join(limits)}."]


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
    from tpuctl.errors import Usage
    from tpuctl.flows.quota import read_room

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
            hint=f"To list its zones:\n    tpuctl zones {name}",
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
    rows = order.apply(map(_room_row, rooms), "zone capacity limit usage nodes")
    best = next((room for room in rooms if room.nodes == 0), rooms[0])
    increase = {
        "url": console_url(tpuctl.project),
        "command": increase_command(tpuctl.project, best),
    }
    unavailable = [problem] if problem else []
    formatted = [
        {
            **row,
            "limit": _amount(row["limit"], row["limit_known"]),
            "usage": f"{row['usage']:g}",
            "nodes": _nodes(row["nodes"], row["limit_known"]),
        }
        for row in rows
    ]
    first = next((row for row in rows if row["nodes"]), None)
    command = increase["command"].replace(" --", " \\\n        --")
    sentences = [
        f"In {rooms[0].unit}; one {name} needs {rooms[0].takes}. Quota does not guarantee capacity."
    ]
    sentences += (f"External addresses are not checked: {reason}." for reason in unavailable)
    answer_rows(
        state,
        lambda: responses.catalog.Limits.model_validate(
            {
                "type": name,
                "limits": _limit_rows(accelerator, spot),
                "live": {
                    "project": tpuctl.project,
                    "zones": rows,
                    "unavailable": unavailable,
                    "increase": increase,
                },
            }
        ),
        formatted,
        {
            "zone": "zone",
            "capacity": "capacity",
            "limit": "limit",
            "usage": "usage",
            "nodes": "nodes that fit",
            "limited_by": "limited by",
        },
        sentences,
        suggestion=(
            "To see its price there:",
            f"tpuctl prices {name} --zone {first['zone']}",
        )
        if first
        else None,
        numbers=("limit", "usage", "nodes"),
        footer=f"\nTo request more:\n    {increase['url']}\n    {command}",
    )


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
