"""Results on stdout: tables that read well in 80 columns, with or without colour."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

__all__ = ["money", "print_facts", "print_table", "span"]


def _console() -> Console:
    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(highlight=False, width=200, no_color=True)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[str] = ()
) -> None:
    """A table; the columns in `numbers` are set to the right."""
    table = Table(box=box.SIMPLE, pad_edge=False, header_style="bold", show_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    _console().print(table)


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Names and values, one pair to a line."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(name, value)
    _console().print(table)


def money(dollars: float) -> str:
    return f"${dollars:,.2f}"


def span(hours: float) -> str:
    """A duration as a person says it."""
    seconds = round(hours * 3600)
    if seconds < 120:
        return f"{seconds} s"
    if seconds < 7200:
        return f"{seconds // 60} min"
    return f"{hours:.1f} h"
