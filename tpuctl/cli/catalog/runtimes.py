"""The `runtimes` command: software versions of TPU VMs and TPU nodes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from tpuctl.cli import responses
from tpuctl.cli.catalog.live_comparison import answer_list, query_live
from tpuctl.cli.catalog.selection import (
    Fields,
    Generation,
    LiveQuery,
    TypeNames,
    Zones,
    select,
)
from tpuctl.cli.parameters.option_groups import expand_option_groups
from tpuctl.cli.parameters.options import Order, sorted_by
from tpuctl.cli.state import State
from tpuctl.view.columns import natural_key
from tpuctl.view.lists import Runtime

if TYPE_CHECKING:
    from tpuctl import catalog
    from tpuctl.catalog import Choice


@expand_option_groups
def runtimes(
    context: typer.Context,
    *,
    names: TypeNames,
    generation: Generation = "",
    tensorflow: Annotated[
        str,
        typer.Option(
            "--tensorflow",
            metavar="VERSION",
            help="Limit to this TensorFlow version, such as 2.18.",
        ),
    ] = "",
    nodes: Annotated[
        bool, typer.Option("--nodes", help="List the versions of TPU nodes (kind: node).")
    ] = False,
    zone: Zones = "",
    order: Annotated[Order, sorted_by(lambda: (Runtime,))],
    query: LiveQuery,
) -> None:
    """List runtimes, newest TensorFlow first; `auto` selects the first that fits.

    No zone is known to lack a runtime: --zone only limits what --live queries.

    Example: tpuctl runtimes v5e-8
    """
    from tpuctl.catalog import node_versions
    from tpuctl.catalog import runtimes as every_runtime

    state: State = context.obj
    state.use_format(order.format)
    choice = select(names.types, generation, zone, is_live=query.is_requested)
    if nodes:
        everything = _rows(node_versions(), "tensorflow", "pytorch")
    else:
        everything = _rows(every_runtime(), "tensorflow", "generations", "hosts")
    rows = [
        row
        for row in everything
        if (nodes or not (names.types or generation) or _fits(row["runtime"], choice))
        and _has_version(row["tensorflow"], tensorflow)
    ]
    live_result = None
    if query.is_requested:
        versions = [row["runtime"] for row in rows]
        others = {row["runtime"] for row in everything} - {*versions}
        live_result = query_live(
            state,
            query,
            "node versions" if nodes else "runtimes",
            lambda place: versions,
            lambda name: name not in others and (name in versions or tensorflow in name),
            zone,
        )
        new = sorted(
            {name for name, _ in live_result.comparison.new} - {*versions}, key=natural_key
        )
        rows += [{**dict.fromkeys(everything[0]), "runtime": name} for name in new]
        for row in rows:
            row["live"] = live_result.comparison.of_name(row["runtime"])
    answer_list(
        state,
        Runtime,
        lambda: responses.catalog.RuntimeCatalog,
        "runtimes",
        order.apply(Runtime, rows),
        live_result,
        without=() if live_result is None else ("generations",),
        suggestion=("To use one in the stack file:", "tpu: {{runtime: {runtime}}}"),
    )


def _rows(entries: Iterable[catalog.Runtime | catalog.NodeVersion], *fields: str) -> list[Fields]:
    return [
        {"runtime": entry.version, **{name: getattr(entry, name) for name in fields}}
        for entry in entries
    ]


def _fits(version: str, choice: Choice) -> bool:
    from tpuctl.catalog import runtime

    runtime_info = runtime(version)
    return runtime_info is not None and any(
        runtime_info.fits(accelerator) for accelerator in choice.types
    )


def _has_version(version: str | None, prefix: str) -> bool:
    """2.18 matches 2.18.0, but 2.1 does not match 2.18."""
    return not prefix or (version is not None and f"{version}.".startswith(f"{prefix}."))
