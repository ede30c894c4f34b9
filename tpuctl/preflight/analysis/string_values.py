"""Constant values, complete or known by prefix, and operations on them."""

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
    """A possible value of an expression."""

    value: Value
    is_complete: bool = True  # False: `value` is only a prefix of the text
    is_certain: bool = True  # False: an option, or code that is not analyzed, may change it
    option: str = ""  # the option that changes it, such as "--data-dir"

    @property
    def text(self) -> str:
        return self.value if isinstance(self.value, str) else ""


UNKNOWN = ConstantValue(None, is_complete=False)


def is_bucket(constant: ConstantValue) -> bool:
    """Whether a path is in Cloud Storage."""
    return constant.text.startswith("gs://")


def is_local(constant: ConstantValue) -> bool:
    """Whether a path is certainly on the machine that runs the script.

    A prefix counts unless it could continue as `gs://` or another URL.
    """
    if not isinstance(constant.value, str) or not constant.value:
        return False
    if constant.value.startswith("file://"):
        return True
    if SCHEME.match(constant.value):
        return False
    # The prefix "g" could continue as "gs://", "s3" as "s3://".
    return constant.is_complete or "/" in constant.value or not constant.value.isalnum()


def as_text(constant: ConstantValue) -> ConstantValue:
    """The value converted to text, as in an f-string."""
    return (
        constant
        if isinstance(constant.value, str)
        else replace(constant, value=str(constant.value))
    )


def _combined(
    left: ConstantValue, right: ConstantValue, value: Value, is_complete_value: bool = True
) -> ConstantValue:
    """A value computed from two others."""
    is_sure = left.is_certain and right.is_certain
    return ConstantValue(value, is_complete_value, is_sure, left.option or right.option)


def join_texts(left: ConstantValue, right: ConstantValue) -> ConstantValue | None:
    """Concatenate two texts; None if the first is not a text."""
    if not left.is_complete:
        return left
    if not isinstance(right.value, str) or not isinstance(left.value, str):
        return replace(left, is_complete=False) if isinstance(left.value, str) else None
    return _combined(left, right, left.text + right.text, right.is_complete)


def join_paths(left: ConstantValue, right: ConstantValue) -> ConstantValue | None:
    """Join two paths; an absolute second path replaces the first."""
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
    """The prefix of all paths below a folder."""
    if not constant.is_complete or not constant.text or constant.text.endswith("/"):
        return replace(constant, is_complete=False)
    return replace(constant, value=f"{constant.text}/", is_complete=False)


def truncated_at(constant: ConstantValue, marker: str) -> ConstantValue:
    """The prefix of a format string before its first placeholder."""
    return replace(constant, value=constant.text.partition(marker)[0], is_complete=False)


def arithmetic(
    operation: ast.operator,
) -> Callable[[ConstantValue, ConstantValue], ConstantValue | None]:
    """A function that applies an operator to two numbers; it returns None for other values."""

    def compute(left: ConstantValue, right: ConstantValue) -> ConstantValue | None:
        kind = NUMBERS.get(type(operation))
        a, b = left.value, right.value
        if kind is None or not isinstance(a, (int, float)) or not isinstance(b, (int, float)):
            return None
        try:
            return _combined(left, right, kind(a, b))
        except (ArithmeticError, ValueError):
            return None

    return compute


def _bounded(number: float) -> float:
    """Return the exponent; raise OverflowError if the result would be huge."""
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
    """Convert a value to a number; None if that fails."""
    if constant.value is None or not constant.is_complete:
        return None
    try:
        return replace(constant, value=kind(constant.value))
    except (ValueError, OverflowError):
        return None
