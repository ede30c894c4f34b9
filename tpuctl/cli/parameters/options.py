"""Options and arguments shared by several commands, with their completion."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer

from tpuctl.cli.completion.candidates import (
    complete_jobs,
    complete_projects,
    complete_stacks,
    complete_types,
)
from tpuctl.view.columns import sort_keys, sort_rows


class ListFormat(StrEnum):
    """Formats of lists other than the table."""

    json = "json"
    yaml = "yaml"
    wide = "wide"


def type_option(text: str) -> Any:
    return typer.Option("--type", help=text, metavar="TYPE", autocompletion=complete_types)


def project_option(text: str) -> Any:
    return typer.Option("--project", help=text, metavar="PROJECT", autocompletion=complete_projects)


Job = Annotated[
    str,
    typer.Argument(
        metavar="[JOB]",
        help="Job id, or its last word (default: the running job, otherwise the latest).",
        show_default=False,
        autocompletion=complete_jobs,
    ),
]
OutputFormat = Annotated[
    ListFormat | None,
    typer.Option(
        "--format",
        "-o",
        metavar="FORMAT",
        help="json, yaml, or wide (a table with more columns).",
        show_choices=False,
    ),
]
StackName = Annotated[
    str,
    typer.Option(
        "--stack",
        metavar="STACK",
        help="Stack name, instead of a stack file; requires --project.",
        autocompletion=complete_stacks,
    ),
]
ProjectId = Annotated[str, project_option("Project id, instead of a stack file; requires --stack.")]


@dataclass(frozen=True)
class Sorting:
    """Options that sort and format rows."""

    sort: str = ""  # commands get it from `sorted_by`
    format: OutputFormat = None

    def apply(self, row_type: type, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The rows sorted by --sort. Raises Usage for a key that they lack."""
        key = self.sort.removeprefix("-").replace("_", "-").lower()
        if key:
            keys = sort_keys(row_type, rows)
            if key not in keys:
                raise self._unknown_key(keys)
            is_descending = self.sort.startswith("-")
            rows = sort_rows(row_type, rows, keys[key], is_descending=is_descending)
        return list(rows)

    def _unknown_key(self, keys: Iterable[str]) -> Exception:
        from tpuctl.errors import Usage
        from tpuctl.spelling import nearest

        name = self.sort.removeprefix("-")
        like = nearest(name, [*keys], count=1)
        suggestion = f"Did you mean {like[0]}? " if like else ""
        return Usage(
            "Unknown sort key",
            f"cannot sort by {name}",
            hint=f"{suggestion}Valid keys: {', '.join(keys)}.",
            where="--sort",
        )


@dataclass(frozen=True)
class Order(Sorting):
    """Options that sort, limit and format rows."""

    limit: Annotated[
        int | None, typer.Option("--limit", min=1, metavar="N", help="Show only the first N rows.")
    ] = None

    def apply(self, row_type: type, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The rows sorted by --sort, up to --limit."""
        return super().apply(row_type, rows)[: self.limit]


def sorted_by(row_types: Callable[[], Iterable[type]]) -> dict[str, Any]:
    """The --sort of a command that lists such rows, for `Annotated[Order, ...]`."""

    def complete(ctx: typer.Context, incomplete: str) -> Iterable[str]:
        return dict.fromkeys(key for row_type in row_types() for key in sort_keys(row_type))

    option = typer.Option(
        "--sort",
        metavar="KEY",
        help="Sort by a column of the wide table; -KEY for descending order.",
        autocompletion=complete,
    )
    return {"sort": Annotated[str, option]}
