"""Values that are known whole, or by how they begin."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

__all__ = [
    "UNKNOWN",
    "Known",
    "as_text",
    "begun",
    "below",
    "calculated",
    "cast",
    "is_bucket",
    "is_local",
    "joined_paths",
    "joined_texts",
]

Value = str | int | float | bool | None
SCHEME = re.compile(r"[a-zA-Z][\w+.-]*://")


@dataclass(frozen=True)
class Known:
    """One value that an expression may have."""

    value: Value
    is_whole: bool = True  # False: only the beginning of a text is known
    is_sure: bool = True  # False: who starts the script, or code that is not seen, may change it
    option: str = ""  # what changes it, such as "--data-dir"

    @property
    def text(self) -> str:
        return self.value if isinstance(self.value, str) else ""


UNKNOWN = Known(None, is_whole=False)  # nobody can tell what it is


def is_bucket(known: Known) -> bool:
    """Whether a path is in Cloud Storage."""
    return known.text.startswith("gs://")


def is_local(known: Known) -> bool:
    """Whether a text, taken as a path, surely names a file of the machine that the script runs on.

    A text that is known in part counts by its beginning, if that cannot become `gs://`.
    """
    if not isinstance(known.value, str) or not known.value:
        return False
    if known.value.startswith("file://"):
        return True
    if SCHEME.match(known.value):
        return False
    # "g" may go on as a bucket's name; "s3" as that of another store.
    return known.is_whole or "/" in known.value or not known.value.isalnum()


def as_text(one: Known) -> Known:
    """As it stands in a text that is put together."""
    return one if isinstance(one.value, str) else replace(one, value=str(one.value))


def _both(one: Known, other: Known, value: Value, is_whole: bool = True) -> Known:
    """A value that was made from two."""
    is_sure = one.is_sure and other.is_sure
    return Known(value, is_whole, is_sure, one.option or other.option)


def joined_texts(one: Known, other: Known) -> Known | None:
    """A text, and another behind it."""
    if not one.is_whole:
        return one
    if not isinstance(other.value, str) or not isinstance(one.value, str):
        return replace(one, is_whole=False) if isinstance(one.value, str) else None
    return _both(one, other, one.text + other.text, other.is_whole)


def joined_paths(one: Known, other: Known) -> Known | None:
    """A path, and another below it; where that is not relative, that one."""
    if not isinstance(one.value, str):
        return None
    if other.text.startswith("/") or SCHEME.match(other.text):
        return other
    if not one.is_whole:
        return one
    if not isinstance(other.value, str):
        return below(one)
    middle = "" if not one.text or one.text.endswith("/") else "/"
    return _both(one, other, one.text + middle + other.text, other.is_whole)


def below(one: Known) -> Known:
    """A path below another."""
    if not one.is_whole or not one.text or one.text.endswith("/"):
        return replace(one, is_whole=False)
    return replace(one, value=f"{one.text}/", is_whole=False)


def begun(one: Known, mark: str) -> Known:
    """How a text begins that is filled in where the mark stands."""
    return replace(one, value=one.text.partition(mark)[0], is_whole=False)


def calculated(sign: ast.operator) -> Callable[[Known, Known], Known | None]:
    """What makes a number of two; nothing where they are none."""

    def make(one: Known, other: Known) -> Known | None:
        kind = NUMBERS.get(type(sign))
        a, b = one.value, other.value
        if kind is None or not isinstance(a, (int, float)) or not isinstance(b, (int, float)):
            return None
        try:
            return _both(one, other, kind(a, b))
        except (ArithmeticError, ValueError):
            return None

    return make


def _bounded(number: float) -> float:
    """The same; raises where a power of it would take long."""
    if not 0 <= number < 64:
        raise OverflowError
    return number


NUMBERS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Pow: lambda a, b: operator.pow(a, _bounded(b)),
    ast.LShift: lambda a, b: int(a) << int(_bounded(b)),
}


def cast(one: Known, kind: Callable[[str | int | float], int | float]) -> Known | None:
    """The same as a number; nothing where that fails."""
    if one.value is None or not one.is_whole:
        return None
    try:
        return replace(one, value=kind(one.value))
    except (ValueError, OverflowError):
        return None
