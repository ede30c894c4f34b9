"""Tables on stdout that fit 80 columns, with or without color."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any

from rich import box
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from tpuctl.units import dollars
from tpuctl.view.columns import Fields, columns_shown
from tpuctl.view.terminal.safe_console import SafeConsole

MAX_WIDTH = 2000  # of a wide table
WHOLE_DOLLARS_FROM = 10_000  # dollars from which cents are omitted


def console(*, no_color: bool = False, width: int = 200) -> Console:
    """Stdout, as wide as the terminal, or of this width otherwise."""
    if sys.stdout.isatty():
        return SafeConsole(highlight=False, emoji=False, no_color=no_color or None)
    return SafeConsole(highlight=False, emoji=False, width=width, no_color=True)


def table(
    columns: Sequence[str],
    rows: Iterable[Iterable[str | Text]],
    *,
    numbers: Sequence[str] = (),
    whole: Sequence[str] = (),
) -> Table:
    """A table; the columns in `numbers` are right-aligned, those in `whole` are never folded."""
    rich_table = Table(box=box.SIMPLE, pad_edge=False, header_style="bold", show_edge=False)
    for column in columns:
        justify: JustifyMethod = "right" if column in numbers else "left"
        rich_table.add_column(column, justify=justify, overflow="fold", no_wrap=column in whole)
    for row in rows:
        # No markup in brackets.
        rich_table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
    return rich_table


def fits(rendered: Table) -> bool:
    """Whether no line of a table has to be wrapped."""
    out = console()
    return out.measure(rendered, options=out.options.update(max_width=10_000)).maximum <= out.width


def facts_table(facts: Iterable[tuple[str, str]]) -> Table:
    """Names and values, one pair to a line."""
    rich_table = Table(box=None, show_header=False, pad_edge=False)
    rich_table.add_column(style="bold", no_wrap=True)
    rich_table.add_column(overflow="fold")
    for name, value in facts:
        rich_table.add_row(Text(name), Text(value))
    return rich_table


def print_table(
    columns: Sequence[str],
    rows: Iterable[Iterable[str | Text]],
    *,
    numbers: Sequence[str] = (),
    whole: Sequence[str] = (),
    is_wide: bool = False,
    no_color: bool = False,
) -> None:
    """Print a table; a wide one has no lines that are folded."""
    rows_table = table(columns, rows, numbers=numbers, whole=whole)
    output = console(no_color=no_color)
    if is_wide:
        output.width = MAX_WIDTH
        output.width = output.measure(rows_table).maximum
    output.print(rows_table)


def print_rows(
    row_type: type,
    rows: Sequence[Fields],
    answer: Fields = MappingProxyType({}),
    without: Collection[str] = (),
    *,
    is_wide: bool = False,
) -> None:
    """Print rows as their class declares; a wide table also has the fields in `without`.

    Missing values are dashes, and floats are dollars. Columns of numbers are right-aligned.
    """
    columns = columns_shown(row_type, rows, without, is_wide=is_wide)
    titles = {name: column.title.format(**answer) for name, column in columns.items()}
    cells = [{name: column.value(row, name) for name, column in columns.items()} for row in rows]
    print_table(
        list(titles.values()),
        [map(_cell, row.values()) for row in cells],
        numbers=[
            title
            for name, title in titles.items()
            if columns[name].is_number or any(_is_number(row[name]) for row in cells)
        ],
        whole=[title for name, title in titles.items() if columns[name].is_whole],
        is_wide=is_wide,
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(value: Any) -> str:
    if value is None or value in ([], ()):
        return "-"
    if isinstance(value, float):
        return f"${value:,.0f}" if value >= WHOLE_DOLLARS_FROM else dollars(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M}"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return str(value)


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    console().print(facts_table(facts))
