"""Rows of lists: the fields of a row's class are the keys of its JSON and YAML, the columns of its
tables and the keys of `--sort`.

    class Zone(Row):
        zone: Annotated[str, Column()]
        types: Annotated[list[str], Column(show=lambda row: len(row["types"]))]
        on_demand: Annotated[Number | None, Column("on demand", sort="price")]
        region: str  # only in wide tables

Importing this loads no pydantic, which takes a while: only JSON and YAML need it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import UnionType
from typing import Annotated, Any, ClassVar, Union, get_args, get_origin, get_type_hints

ABSENT: Any = None  # the default of optional keys, which are left out if they are not set
Fields = Mapping[str, Any]  # of a row


class _JsonNumber:
    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {"type": "number"}


Number = Annotated[int | float, _JsonNumber()]  # 0 is not printed as 0.0


class Row:
    """The base of rows and of what is in them: for pydantic, models with the same fields."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Callable[[Any], Any]) -> Any:
        from pydantic import BaseModel

        members = {"__doc__": cls.__doc__, "__module__": cls.__module__}
        return handler(type(cls.__name__, (BaseModel, cls), members))


@dataclass(frozen=True)
class Column:
    """Marks a field that is in tables; others are only in wide ones.

    The title may contain keys of the answer, such as `{region}`. `sort` are the keys of `--sort`,
    separated by spaces; by default, title and key are the field's name. `show` returns what is
    shown of a row, if not the field.
    """

    title: str = ""
    sort: str = ""
    show: Callable[[Fields], Any] | None = None
    is_wide: bool = False
    is_whole: bool = False  # never folded
    is_number: bool = False  # derived from the field's type

    def value(self, row: Fields, name: str) -> Any:
        return row[name] if self.show is None else self.show(row)


JSON_ONLY = "in no table"  # marks a field


def columns_of(row_type: type, rows: Sequence[Fields] = ()) -> dict[str, Column]:
    """The columns by field; of rows, if given, those that they have."""
    hints = get_type_hints(row_type, include_extras=True)
    others = hints.pop("__pydantic_extra__", None)  # of rows with more fields than are known
    if others is not None and rows:
        names = [name for name in rows[0] if name not in hints]
        hints |= {name: Annotated[get_args(others)[1], Column(name)] for name in names}
    return {
        name: _column(name, hint)
        for name, hint in hints.items()
        if get_origin(hint) is not ClassVar
        and JSON_ONLY not in getattr(hint, "__metadata__", ())
        and (not rows or name in rows[0])
    }


def columns_shown(
    row_type: type, rows: Sequence[Fields], without: Collection[str], *, is_wide: bool
) -> dict[str, Column]:
    """Those of a table of some rows: without some of the fields, or of all if it is wide."""
    columns = columns_of(row_type, rows)
    narrow = {
        name: column
        for name, column in columns.items()
        if not column.is_wide and name not in without
    }
    return narrow | columns if is_wide else narrow


def sort_keys(row_type: type, rows: Sequence[Fields] = ()) -> dict[str, str]:
    """The keys to sort by, and their fields; if fields share a key, the first that rows have."""
    keys: dict[str, str] = {}
    for name, column in columns_of(row_type, rows).items():
        for key in (column.sort or name.replace("_", "-")).split():
            keys.setdefault(key, name)
    return keys


def sort_rows(
    row_type: type, rows: Sequence[Fields], name: str, *, is_descending: bool
) -> list[Any]:
    """The rows by a field: text in natural order, lists by what is shown of them, otherwise by
    their length. Rows without a value come last in both orders."""
    column = columns_of(row_type).get(name, Column())

    def value(row: Fields) -> Any:
        value = row[name]
        if isinstance(value, list | tuple | dict):
            value = len(value) if column.show is None else column.value(row, name)
        return natural_key(value) if isinstance(value, str) else value

    present = [row for row in rows if value(row) is not None]
    missing = [row for row in rows if value(row) is None]
    return [*sorted(present, key=value, reverse=is_descending), *missing]


def natural_key(text: str) -> list[tuple[int, int, str]]:
    """A natural sort key: v3-8 before v3-32, 2.9 before 2.18."""
    return [
        (0, int(part), "") if part.isdigit() else (1, 0, part)
        for part in re.split(r"(\d+)", text)
        if part
    ]


def _column(name: str, hint: Any) -> Column:
    marks = (mark for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, Column))
    column = next(marks, Column(is_wide=True))
    title = column.title or name.replace("_", " ")
    return replace(column, title=title, is_number=_is_number(hint))


def _is_number(hint: Any) -> bool:
    if get_origin(hint) in (Annotated, Union, UnionType):
        return any(map(_is_number, get_args(hint)))
    return hint in (int, float)
