"""The command `runtimes`: software versions of TPU VMs, and of TPU nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpuctl.cli.catalog.selection import (
    Generation,
    Limit,
    Live,
    LiveProject,
    Sort,
    Types,
    Zones,
    chosen,
    field,
    finish,
    in_order,
    natural,
)
from tpuctl.cli.state import State

if TYPE_CHECKING:
    from tpuctl.catalog import Choice

__all__ = ["runtimes"]

Row = dict[str, Any]


def runtimes(
    context: typer.Context,
    accelerator: Types = "",
    generation: Generation = "",
    tensorflow: Annotated[
        str,
        typer.Option("--tensorflow", metavar="VERSION", help="Only with this one, such as 2.18."),
    ] = "",
    nodes: Annotated[
        bool, typer.Option("--nodes", help="The versions of TPU nodes (kind: node) instead.")
    ] = False,
    zone: Zones = "",
    sort: Sort = "",
    limit: Limit = None,
    live: Live = False,
    project: LiveProject = "",
) -> None:
    """List runtimes, newest TensorFlow first; the first that fits is what `auto` takes.

    No zone is known to lack one: --zone narrows what --live asks.

    Example: tpuctl runtimes --type v3-8
    """
    state: State = context.obj
    is_live = live or bool(project)
    choice = chosen(types=accelerator, generation=generation, zone=zone, is_live=is_live)
    everything = _node_rows() if nodes else _rows()
    rows = [
        row
        for row in everything
        if (nodes or not (accelerator or generation) or _fits(row["runtime"], choice))
        and _has(row["tensorflow"], tensorflow)
    ]
    told = None
    if is_live:
        from tpuctl.cli.catalog.live_comparison import ask

        known = [row["runtime"] for row in rows]
        others = {row["runtime"] for row in everything} - {*known}
        told = ask(
            state,
            project,
            "node versions" if nodes else "runtimes",
            lambda place: known,
            lambda name: name not in others and (name in known or tensorflow in name),
            zone=zone,
        )
        new = sorted({name for name, _ in told.compared.new} - {*known}, key=natural)
        rows += [{**dict.fromkeys(everything[0]), "runtime": name} for name in new]
        for row in rows:
            row["live"] = told.compared.of_name(row["runtime"])
    rows = in_order(
        rows,
        sort,
        limit,
        {
            "runtime": lambda row: natural(row["runtime"]),
            "tensorflow": lambda row: natural(row["tensorflow"]) if row["tensorflow"] else None,
            **({} if nodes else {"hosts": field("hosts")}),
        },
    )
    columns = {name: name for name in everything[0]}
    if told is not None:
        columns.pop("generations", None)
        columns["live"] = "live"
    finish(
        state,
        "runtimes",
        rows,
        columns,
        told,
        more=("In the stack file:", "tpu: {{runtime: {runtime}}}"),
    )


def _rows() -> list[Row]:
    from tpuctl.catalog import runtimes as every_runtime

    return [
        {
            "runtime": one.version,
            "tensorflow": one.tensorflow,
            "generations": list(one.generations),
            "hosts": one.hosts,
        }
        for one in every_runtime()
    ]


def _node_rows() -> list[Row]:
    from tpuctl.catalog import node_versions

    return [
        {"runtime": one.version, "tensorflow": one.tensorflow, "pytorch": one.pytorch}
        for one in node_versions()
    ]


def _fits(version: str, choice: Choice) -> bool:
    from tpuctl.catalog import runtime

    found = runtime(version)
    return found is not None and any(found.fits(one) for one in choice.types)


def _has(version: str | None, wanted: str) -> bool:
    """2.18 stands for 2.18.0 too, and 2.1 for no 2.18."""
    return not wanted or (version is not None and f"{version}.".startswith(f"{wanted}."))
