"""Compared jobs on stdout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.units import dollars, format_duration
from tpuctl.view.jobs.curves import number
from tpuctl.view.stack.cost import on_google
from tpuctl.view.terminal.tables import console, print_table
from tpuctl.view.terminal.text_wrapping import print_wrapped

if TYPE_CHECKING:
    from tpuctl.model.jobs.comparison import Comparison, ComparisonRow, Value

NAME_WIDTH, COLUMN_WIDTH = 26, 12  # characters; a column may be wider if there is room
MAX_NAMES = 8  # in a cell
NO_METRICS = "No metrics: the logs have no lines like `step 100 loss 2.5`."


def print_comparison(comparison: Comparison, *, shows_all: bool, is_free: bool) -> None:
    """A row for each property that differs, and a column for each job; several tables if there are
    more jobs than fit."""
    rows = [row for row in comparison.rows if shows_all or row.differs]
    titles = comparison.jobs
    words = [job.rpartition("-")[2] for job in titles]
    if len(titles) > 2 and len(set(words)) == len(words):
        titles = tuple(words)  # as other commands accept them
    per_table = max(2, (console().width - NAME_WIDTH) // COLUMN_WIDTH)
    for first in range(0, len(titles), per_table):
        columns = slice(first, first + per_table)
        cells = [
            (_title(row, is_free), *(_cell(row, value, shows_all) for value in row.values[columns]))
            for row in rows
        ]
        print_table(("", *titles[columns]), cells)
        print()
    same = len(comparison.rows) - len(rows)
    if same:
        print_wrapped(f"The same for all: {same} others; --all shows them.")
    if not comparison.has_metrics:
        print_wrapped(NO_METRICS)


def _title(row: ComparisonRow, is_free: bool) -> str:
    return on_google(row.name, is_free=is_free) if row.unit == "dollars" else row.name


def _cell(row: ComparisonRow, value: Value, shows_all: bool) -> str:
    match value:
        case None:
            return "-"
        case tuple():
            common = set.intersection(*(set(value or ()) for value in row.values))  # type: ignore[arg-type]
            names = [name for name in value if shows_all or name not in common]
            more = len(names) - MAX_NAMES
            return (
                "\n".join([*names[:MAX_NAMES], *([f"and {more} more"] if more > 0 else [])]) or "-"
            )
        case int() | float() if row.unit == "seconds":
            return format_duration(value)
        case int() | float() if row.unit == "dollars":
            return dollars(value)
        case float():
            return number(value)
        case int():
            return f"{value:,}"
    return value
