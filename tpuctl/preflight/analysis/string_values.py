"""Values that are known whole, or by how they begin."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

__all__ = [
    "UNKNOWN",
    "ConstantValue",
    "arithmetic",
    "as_text",
    "cast",
    "is_bucket",
    "is_local",
    "join_paths",
    "join_texts",
    "path_below",
    "truncated_at",
]

Value = str | int | float | bool | None
SCHEME = re.compile(r"[a-zA-Z][\w+.-]*://")


@dataclass(frozen=True)
class ConstantValue:
    """One value that an expression may have."""

    value: Value
    is_complete: bool = True  # False: only the beginning of a text is known
    is_certain: bool = True  # False: who starts the script, or code that is not seen, may change it
    option: str = ""  # what changes it, such as "--data-dir"

    @property
    def text(self) -> str:
        return self.value if isinstance(self.value, str) else ""


UNKNOWN = ConstantValue(None, is_complete=False)


def is_bucket(constant: ConstantValue) -> bool:
    """Whether a path is in Cloud Storage."""
    return constant.text.startswith("gs://")


def is_local(constant: ConstantValue) -> bool:
    """Whether a text, taken as a path, surely names a file of the machine that the script runs on.

    A text that is known in part counts by its beginning, if that cannot become `gs://`.
    """
    if not isinstance(constant.value, str) or not constant.value:
        return False
    if constant.value.startswith("file://"):
        return True
    if SCHEME.match(constant.value):
        return False
    # "g" may go on as a bucket's name; "s3" as that of another store.
    return constant.is_complete or "/" in constant.value or not constant.value.isalnum()


def as_text(constant: ConstantValue) -> ConstantValue:
    """As it stands in a text that is put together."""
    return (
        constant
        if isinstance(constant.value, str)
        else replace(constant, value=str(constant.value))
    )


def _combined(
    left: ConstantValue, right: ConstantValue, value: Value, is_whole: bool = True
) -> ConstantValue:
    """A value that was made from two."""
    is_sure = left.is_certain and right.is_certain
    return ConstantValue(value, is_whole, is_sure, left.option or right.option)


def join_texts(left: ConstantValue, right: ConstantValue) -> ConstantValue | None:
    """A text, and another behind it."""
    if not left.is_complete:
        return left
    if not isinstance(right.value, str) or not isinstance(left.value, str):
        return replace(left, is_complete=False) if isinstance(left.value, str) else None
    return _combined(left, right, left.text + right.text, right.is_complete)


def join_paths(left: ConstantValue, right: ConstantValue) -> ConstantValue | None:
    """A path, and another below it; where that is not relative, that one."""
    if not isinstance(left.value, str):
        return None
    if right.text.startswith("/") or SCHEME.match(right.text):
        return right
    if not left.is_complete:
        return left
    if not isinstance(right.value, str):
        return path_below(left)
    middle = "" if not left.text or left.text.endswith("/") else "/"
    return _combined(left, right, left.text + middle + right.text, right.is_complete)


def path_below(constant: ConstantValue) -> ConstantValue:
    """A path below another."""
    if not constant.is_complete or not constant.text or constant.text.endswith("/"):
        return replace(constant, is_complete=False)
    return replace(constant, value=f"{constant.text}/", is_complete=False)


def truncated_at(constant: ConstantValue, mark: str) -> ConstantValue:
    """How a text begins that is filled in where the mark stands."""
    return replace(constant, value=constant.text.partition(mark)[0], is_complete=False)


def arithmetic(
    sign: ast.operator,
) -> Callable[[ConstantValue, ConstantValue], ConstantValue | None]:
    """What makes a number of two; nothing where they are none."""

    def make(left: ConstantValue, right: ConstantValue) -> ConstantValue | None:
        kind = NUMBERS.get(type(sign))
        a, b = left.value, right.value
        if kind is None or not isinstance(a, (int, float)) or not isinstance(b, (int, float)):
            return None
        try:
            return _combined(left, right, kind(a, b))
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


def cast(
    constant: ConstantValue, kind: Callable[[str | int | float], int | float]
) -> ConstantValue | None:
    """The same as a number; nothing where that fails."""
    if constant.value is None or not constant.is_complete:
        return None
    try:
        return replace(constant, value=kind(constant.value))
    except (ValueError, OverflowError):
        return None
