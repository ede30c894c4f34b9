"""Options of the catalog commands to select, sort and limit rows."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpuctl.cli.completion.candidates import (
    complete_capacities,
    complete_regions,
    complete_types,
    complete_zones,
)
from tpuctl.cli.help.suggestions import (
    require_generations,
    require_regions,
    require_types,
    require_zones,
)
from tpuctl.cli.parameters.options import project_option

if TYPE_CHECKING:
    from tpuctl.api.interface import Tpuctl
    from tpuctl.catalog import Capacity, Choice
    from tpuctl.cli.state import State
    from tpuctl.view.columns import Row
    from tpuctl.view.responses.base import Response

Fields = dict[str, Any]  # of a row
LIMIT = "Limit to names, patterns ('us-*') or lists"  # a panel of the help


def _limit(name: str, text: str, complete: Callable[[str], Any] | None = None) -> Any:
    return typer.Option(
        f"--{name}",
        rich_help_panel=LIMIT,
        metavar=name.upper(),
        help=text,
        autocompletion=complete,
    )


TypeArgument = Annotated[
    str,
    typer.Argument(
        metavar="[TYPE]",
        help="Type, generation (v5e), pattern ('v6e-*'), or a comma-separated list.",
        autocompletion=complete_types,
        show_default=False,
    ),
]
HiddenType = Annotated[
    str,
    typer.Option("--type", metavar="TYPE", hidden=True, autocompletion=complete_types),
]
"""Hidden --type of commands that take the type as an argument."""
Zones = Annotated[
    str, _limit("zone", "Limit to these zones: name, pattern ('us-*'), or a list.", complete_zones)
]
Regions = Annotated[str, _limit("region", "Limit to these regions.", complete_regions)]
Generation = Annotated[str, _limit("generation", "Limit to these generations, such as v5e.")]
CapacityName = Annotated[
    str, _limit("capacity", "Limit to on-demand, spot or flex-start.", complete_capacities)
]
Live = Annotated[bool, typer.Option("--live", help="Query Google and show differences.")]
LiveProject = Annotated[str, project_option("Project for --live (default: the stack file's).")]


@dataclass(frozen=True)
class TypeNames:
    """The argument that names types, and the option that does the same."""

    accelerator: TypeArgument = ""
    type_too: HiddenType = ""

    @property
    def types(self) -> str:
        return ",".join(filter(None, (self.accelerator, self.type_too)))


@dataclass(frozen=True)
class Filters:
    """Options that select types and zones."""

    generation: Generation = ""
    zone: Zones = ""
    region: Regions = ""
    min_chips: Annotated[
        int,
        typer.Option(
            "--min-chips",
            rich_help_panel=LIMIT,
            min=1,
            show_default=False,
            help="Minimum number of chips.",
        ),
    ] = 1
    max_chips: Annotated[
        int | None,
        typer.Option("--max-chips", rich_help_panel=LIMIT, min=1, help="Maximum number of chips."),
    ] = None

    def choice(self, types: str, *, is_live: bool = False) -> Choice:
        """The selection among these types. Raises Usage like `select`."""
        from tpuctl.errors import Usage

        if self.max_chips is not None and self.max_chips < self.min_chips:
            raise Usage(
                "Conflicting options",
                f"no type has {self.min_chips} chips or more and {self.max_chips} or fewer",
                hint="Remove one of them.",
                where="--max-chips",
            )
        chips = self.min_chips, self.max_chips
        return select(types, self.generation, self.zone, self.region, chips, is_live=is_live)


@dataclass(frozen=True)
class LiveQuery:
    """Options that compare the catalog with Google."""

    live: Live = False
    project: LiveProject = ""

    @property
    def is_requested(self) -> bool:
        return self.live or bool(self.project)


def select(
    types: str = "",
    generation: str = "",
    zone: str = "",
    region: str = "",
    chips: tuple[int, int | None] = (1, None),
    *,
    is_live: bool = False,
) -> Choice:
    """The types and zones that the options select. Raises Usage for names not in the catalog.

    With `is_live`, zones and regions may be missing in the catalog.
    """
    from tpuctl.catalog import choose

    return choose(
        types=require_types(types),
        generations=require_generations(generation),
        zones=None if is_live else select_zones(zone, region),
        chips=chips,
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

    from tpuctl.catalog import accelerator_types, type_pattern

    catalog_types = accelerator_types()
    names = {accelerator.name for accelerator in choice.types}
    conditions = [
        [type_pattern(word) for part in text.lower().split(",") if (word := part.strip())]
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


def answer_rows(
    state: State,
    row_type: type[Row],
    model: Callable[[], type[Response]],
    data: Fields,
    rows: Sequence[Fields],
    sentences: Iterable[str] = (),
    *,
    without: Collection[str] = (),
    suggestion: tuple[str, str] | None = None,
    footer: str = "",
    empty: str = "",
) -> None:
    """Answer with data, which a model is built from; shown are rows as by `view.tables.print_rows`,
    wrapped sentences, the footer as it is, and a suggestion. `model` is only called to print JSON.

    The suggestion is a text and a command, shown on terminals. Without rows, `empty` is printed to
    stderr instead.
    """
    from tpuctl.view.terminal.tables import print_rows
    from tpuctl.view.terminal.text_wrapping import readable_width, wrap

    def show() -> None:
        if rows:
            print_rows(row_type, rows, data, without, is_wide=state.is_wide)
        for sentence in sentences:
            state.note(wrap(sentence, readable_width(sys.stdout)))
        if footer:
            state.note(footer)
        is_terminal = sys.stdout.isatty() and sys.stderr.isatty()
        if not rows and empty:
            state.announce(empty)
        elif suggestion and is_terminal:
            state.announce("\n{}\n    {}".format(*suggestion))

    state.answer(lambda: model().model_validate(data), show)
