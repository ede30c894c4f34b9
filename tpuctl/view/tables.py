"""Results on stdout: tables that read well in 80 columns, with or without colour."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tpuctl.catalog import dollars

__all__ = ["console", "facts_table", "money", "print_facts", "print_table", "table"]


def console() -> Console:
    """Stdout: as wide as the terminal, or wide enough for whoever reads lines."""
    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(highlight=False, width=200, no_color=True)


def table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[str] = ()
) -> Table:
    """A table; the columns in `numbers` are set to the right."""
    made = Table(box=box.SIMPLE, pad_edge=False, header_style="bold", show_edge=False)
    for column in columns:
        made.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    for row in rows:
        made.add_row(*map(Text, row))  # brackets are no markup
    return made


def facts_table(facts: Iterable[tuple[str, str]]) -> Table:
    """Names and values, one pair to a line."""
    made = Table(box=None, show_header=False, pad_edge=False)
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in facts:
        made.add_row(Text(name), Text(value))
    return made


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[str] = ()
) -> None:
    console().print(table(columns, rows, numbers=numbers))


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    console().print(facts_table(facts))


def money(amount: float) -> str:
    return dollars(amount)
