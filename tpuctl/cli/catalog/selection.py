"""Options of the catalog commands to select, sort and limit rows."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from tpuctl.cli.completion.candidates import complete_capacities, complete_types
from tpuctl.cli.options import project_option, region_option, type_option, zone_option
from tpuctl.cli.suggestions import (
    require_generations,
    require_regions,
    require_types,
    require_zones,
)

if TYPE_CHECKING:
    from tpuctl.api.interface import Tpuctl
    from tpuctl.catalog import Capacity, Choice
    from tpuctl.cli.state import State

__all__ = [
    "CapacityName",
    "Generation",
    "HiddenType",
    "Limit",
    "Live",
    "LiveProject",
    "MaxChips",
    "MinChips",
    "Regions",
    "Sort",
    "Types",
    "Zones",
    "answer_list",
    "capacities",
    "field",
    "live_client",
    "name_filter",
    "natural_key",
    "select",
    "select_zones",
    "sort_rows",
    "suggest",
]

T = TypeVar("T")

Types = Annotated[
    str,
    type_option("Type, generation (v5e), pattern ('v6e-*'), or a comma-separated list."),
]
HiddenType = Annotated[
    str,
    typer.Option("--type", metavar="TYPE", hidden=True, autocompletion=complete_types),
]
"""Hidden --type of commands that take the type as an argument."""
Zones = Annotated[str, zone_option("Limit to these zones: name, pattern ('us-*'), or a list.")]
Regions = Annotated[str, region_option("Limit to these regions.")]
Generation = Annotated[
    str,
    typer.Option(
        "--generation", metavar="GENERATION", help="Limit to these generations, such as v5e."
    ),
]
CapacityName = Annotated[
    str,
    typer.Option(
        "--capacity",
        metavar="CAPACITY",
        help="Limit to on-demand, spot or flex-start.",
        autocompletion=complete_capacities,
    ),
]
MinChips = Annotated[
    int, typer.Option("--min-chips", min=1, show_default=False, help="Minimum number of chips.")
]
MaxChips = Annotated[
    int | None, typer.Option("--max-chips", min=1, help="Maximum number of chips.")
]
Sort = Annotated[
    str,
    typer.Option("--sort", metavar="KEY", help="Sort by this column; -KEY for descending order."),
]
Limit = Annotated[
    int | None, typer.Option("--limit", min=1, metavar="N", help="Show only the first N rows.")
]
Live = Annotated[bool, typer.Option("--live", help="Query Google and show differences.")]
LiveProject = Annotated[str, project_option("Project for --live (default: the stack file's).")]


def select(
    *,
    types: str = "",
    generation: str = "",
    zone: str = "",
    region: str = "",
    min_chips: int = 1,
    max_chips: int | None = None,
    is_live: bool = False,
) -> Choice:
    """The types and zones that the options select. Raises Usage for names not in the catalog.

    With `is_live`, zones and regions may be missing in the catalog.
    """
    from tpuctl.catalog import choose
    from tpuctl.errors import Usage

    if max_chips is not None and max_chips < min_chips:
        raise Usage(
            "Conflicting options",
            f"no type has {min_chips} chips or more and {max_chips} or fewer",
            hint="Remove one of them.",
            where="--max-chips",
        )
    return choose(
        types=require_types(types),
        generations=require_generations(generation),
        zones=None if is_live else select_zones(zone, region),
        chips=(min_chips, max_chips),
    )


def capacities(text: str) -> tuple[Capacity, ...]:
    """The priced capacity that --capacity names; all if empty. Raises Usage."""
    from tpuctl.catalog import PRICED_CAPACITIES
    from tpuctl.errors import Usage
    from tpuctl.spelling import nearest

    if not text:
        return PRICED_CAPACITIES
    name = text.lower().replace("_", "-").replace(" ", "-")
    name = {"preemptible": "spot", "reserved": "on-demand"}.get(name, name)
    matches = tuple(candidate for candidate in PRICED_CAPACITIES if candidate == name)
    if not matches:
        like = nearest(name, PRICED_CAPACITIES, count=1) or ["on-demand, spot or flex-start"]
        raise Usage(
            "Invalid value",
            f"--capacity: unknown capacity {text}",
            hint=f"Did you mean {like[0]}?",
            where="--capacity",
        )
    return matches


def select_zones(zone: str, region: str, also: Collection[str] = ()) -> tuple[str, ...]:
    """The zones that the options name, or all. `also` are valid in addition to the catalog's."""
    from tpuctl.catalog import region_of
    from tpuctl.catalog import zones as every_zone
    from tpuctl.errors import Usage

    all_zones = sorted({*every_zone(), *also})
    zones, regions = require_zones(zone, all_zones), require_regions(region, all_zones)
    selected = tuple(
        candidate
        for candidate in (zones if zones is not None else all_zones)
        if regions is None or region_of(candidate) in regions
    )
    if not selected:
        raise Usage(
            "Conflicting options",
            f"zone {zone} is not in region {region}",
            hint="Pass only one of them.",
            where="--region",
        )
    return selected


def sort_rows(
    rows: Iterable[T],
    sort: str,
    limit: int | None,
    keys: Mapping[str, Callable[[T], Any]],
) -> list[T]:
    """The rows sorted by the key that `sort` names, up to `limit`; unsorted if empty.

    Rows without a value come last in both orders. Raises Usage for unknown keys.
    """
    found = list(rows)
    name = sort.removeprefix("-").replace("_", "-").lower()
    if name:
        value = keys.get(name) or _unknown_key(sort, keys)
        # Two passes: rows without a value come last in both orders.
        found.sort(key=_comparable(value), reverse=sort.startswith("-"))
        found.sort(key=lambda row: value(row) is None)
    return found[:limit]


def field(name: str) -> Callable[[Mapping[str, Any]], Any]:
    """A sort key: the value of this column."""
    return lambda row: row[name]


def natural_key(text: str) -> list[tuple[int, int, str]]:
    """A natural sort key: v3-8 before v3-32, 2.9 before 2.18."""
    return [
        (0, int(part), "") if part.isdigit() else (1, 0, part)
        for part in re.split(r"(\d+)", text)
        if part
    ]


def _comparable(value: Callable[[T], Any]) -> Callable[[T], Any]:
    """A sort key in which all missing values are equal."""

    def comparable(row: T) -> tuple[bool, Any]:
        sort_value = value(row)
        return (sort_value is not None, 0 if sort_value is None else sort_value)

    return comparable


def _unknown_key(sort: str, keys: Mapping[str, Any]) -> Any:
    from tpuctl.errors import Usage
    from tpuctl.spelling import nearest

    like = nearest(sort.removeprefix("-"), keys, count=1)
    suggestion = f"Did you mean {like[0]}? " if like else ""
    raise Usage(
        "Unknown sort key",
        f"cannot sort by {sort.removeprefix('-') or 'an empty key'}",
        hint=f"{suggestion}Valid keys: {', '.join(keys)}.",
        where="--sort",
    )


def suggest(state: State, text: str, *commands: str) -> None:
    """Suggest commands on stderr, on terminals only."""
    if state.json or state.quiet or not (sys.stdout.isatty() and sys.stderr.isatty()):
        return
    lines = "".join(f"\n    {command}" for command in commands)
    typer.echo(f"\n{text}{lines}", err=True)


def live_client(state: State, project: str) -> Tpuctl:
    """A client for `--live`, in the named project or that of the stack file."""
    if not project and not state.stack_file.exists():
        from tpuctl.errors import Usage

        raise Usage(
            "Missing project",
            f"--live requires a project, and there is no {state.stack_file}",
            hint="Pass a project, or remove --live to see the catalog:\n"
            f"    {state.cloud_prefix} {state.command} --live --project my-project",
            where="--live",
        )
    return state.tpuctl(project=project)


def name_filter(choice: Choice, types: str, generation: str) -> Callable[[str], bool]:
    """A filter for type names from the API: selected types, and new ones that match by name.

    Chip limits do not apply to new types, whose number of chips is unknown.
    """
    import fnmatch

    from tpuctl.catalog import accelerator_types

    catalog_types = accelerator_types()
    names = {accelerator.name for accelerator in choice.types}
    conditions = [
        [_prefix(word.strip()) for word in text.lower().split(",") if word.strip()]
        for text in (types, generation)
    ]

    def matches(name: str) -> bool:
        if name in catalog_types:
            return name in names
        return all(
            not words or any(fnmatch.fnmatchcase(name, word) for word in words)
            for words in conditions
        )

    return matches


def _prefix(word: str) -> str:
    """The name pattern of a generation: `v5litepod-*` for v5e."""
    from tpuctl.catalog import accelerator_types, generations

    if word not in generations():
        return word
    first = next(
        candidate
        for candidate in accelerator_types()
        if accelerator_types()[candidate].generation == word
    )
    return f"{first.rpartition('-')[0]}-*"


def answer_list(
    state: State,
    name: str,
    rows: list[dict[str, Any]],
    columns: Mapping[str, str],
    live_result: Any,
    *,
    suggestion: tuple[str, str],
    note: str = "",
    counted: Sequence[str] = (),
) -> None:
    """Answer a list command: a table, the differences of --live, and the next command."""
    from tpuctl.catalog import read_date
    from tpuctl.view.tables import print_rows

    def show() -> None:
        if rows:
            print_rows(rows, columns, counted=counted)
        if rows and note:
            print(note.format(read=read_date()))
        for sentence in live_result.sentences() if live_result is not None else ():
            print(sentence)
        if not rows:
            typer.echo("No matching entries.", err=True)
        elif suggestion:
            text, command = suggestion
            suggest(state, text, command.format(**rows[0]))

    state.answer(
        {
            "as_of": read_date(),
            name: rows,
            "live": live_result.data if live_result is not None else None,
        },
        show,
    )
