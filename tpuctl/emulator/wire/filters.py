"""Filters of lists, as Compute Engine and Resource Manager v1 understand them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["NoFilter", "matches"]

Row = Mapping[str, Any]
Compare = Callable[[Row, str, str, str], bool]

_TERM = re.compile(
    r"\s*([A-Za-z][\w.-]*)\s*(!=|=|:|\s(?:eq|ne)\s)\s*"
    r"(?:\"((?:[^\"\\]|\\.)*)\"|'((?:[^'\\]|\\.)*)'|([^\s()]*))"
)
_WORD = re.compile(r"\s*(AND|OR)\b")
_NOT = re.compile(r"\s*(?:NOT\b|-(?=\s*[A-Za-z(]))")


class NoFilter(ValueError):
    """The text cannot be read as a filter."""


def matches(row: Row, text: str, compare: Compare | None = None, *, any_of: bool = False) -> bool:
    """Whether a filter takes the row; NoFilter where it is none.

    Terms are `name=x`, `name eq pattern`, `labels.k:*`, in parentheses or not, with NOT or `-`
    before them, joined by AND (or nothing) and OR; AND binds closer
    (cloud.google.com/compute/docs/reference/rest, "filter"); with `any_of` nothing
    between terms means OR. `compare` decides over the row, a field, an operator and a value.
    """
    if not text.strip():
        return True
    parser = _Filter(row, text, compare or _holds, any_of)
    holds = parser.either()
    if parser.rest():
        raise NoFilter(text)
    return holds


class _Filter:
    """Reads a filter from left to right and says what each part of it makes of a row."""

    def __init__(self, row: Row, text: str, compare: Compare, any_of: bool) -> None:
        self._row = row
        self._text = text
        self._compare = compare
        self._any_of = any_of
        self._at = 0

    def rest(self) -> str:
        return self._text[self._at :].strip()

    def either(self) -> bool:
        holds = self._all()
        while self._take_word("OR") or (self._any_of and self._goes_on()):
            other = self._all()
            holds = holds or other
        return holds

    def _all(self) -> bool:
        holds = self._one()
        while self._take_word("AND") or (not self._any_of and self._goes_on()):
            other = self._one()
            holds = holds and other
        return holds

    def _one(self) -> bool:
        negation = _NOT.match(self._text, self._at)
        if negation is not None:
            self._at = negation.end()
            return not self._one()
        if self.rest().startswith("("):
            self._at = self._text.index("(", self._at) + 1
            holds = self.either()
            if not self.rest().startswith(")"):
                raise NoFilter(self._text)
            self._at = self._text.index(")", self._at) + 1
            return holds
        term = _TERM.match(self._text, self._at)
        if term is None:
            raise NoFilter(self._text)
        self._at = term.end()
        quoted = term[3] if term[3] is not None else term[4]
        expected = re.sub(r"\\([\"'])", r"\1", quoted) if quoted is not None else term[5]
        return self._compare(self._row, term[1], term[2].strip(), expected)

    def _goes_on(self) -> bool:
        rest = self.rest()
        return bool(rest) and not rest.startswith(")") and _WORD.match(rest) is None

    def _take_word(self, word: str) -> bool:
        match = _WORD.match(self._text, self._at)
        if match is None or match[1] != word:
            return False
        self._at = match.end()
        return True


def _holds(row: Row, field: str, operator: str, expected: str) -> bool:
    value: Any = row
    for part in field.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    actual = "" if value is None else str(value)
    if isinstance(value, bool):
        actual = str(value).lower()
    if operator in ("eq", "ne"):
        try:
            is_equal = re.fullmatch(expected, actual) is not None
        except re.error as error:
            raise NoFilter(expected) from error
        return is_equal == (operator == "eq")
    if operator == ":":
        return value is not None if expected == "*" else expected.strip("*") in actual
    return (actual == expected) == (operator == "=")
