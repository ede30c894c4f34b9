"""Filters of lists, as Compute Engine and Resource Manager v1 understand them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Row = Mapping[str, Any]
Compare = Callable[[Row, str, str, str], bool]

_TERM = re.compile(
    r"\s*([A-Za-z][\w.-]*)\s*(!=|=|:|\s(?:eq|ne)\s)\s*"
    r"(?:\"((?:[^\"\\]|\\.)*)\"|'((?:[^'\\]|\\.)*)'|([^\s()]*))"
)
_WORD = re.compile(r"\s*(AND|OR)\b")
_NOT = re.compile(r"\s*(?:NOT\b|-(?=\s*[A-Za-z(]))")


class InvalidFilter(ValueError):
    """The text is not a valid filter."""


def matches(row: Row, text: str, compare: Compare | None = None, *, any_of: bool = False) -> bool:
    """Whether a filter matches the row; raises InvalidFilter.

    Terms are `name=x`, `name eq pattern`, `labels.k:*`, in parentheses or not, with NOT or `-`
    before them, joined by AND (or nothing) and OR; AND binds closer
    (cloud.google.com/compute/docs/reference/rest, "filter"); with `any_of` nothing
    between terms means OR. `compare` compares a row's field by an operator with a value.
    """
    if not text.strip():
        return True
    parser = _Filter(row, text, compare or _compare_field, any_of)
    holds = parser.parse_or()
    if parser.rest():
        raise InvalidFilter(text)
    return holds


def matches_pattern(text: str, pattern: str) -> bool:
    """Whether all of a text matches, in which `*` stands for any characters, in any case."""
    return bool(re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), text, re.IGNORECASE))


class _Filter:
    """A recursive descent parser that evaluates a filter for a row."""

    def __init__(self, row: Row, text: str, compare: Compare, any_of: bool) -> None:
        self._row = row
        self._text = text
        self._compare = compare
        self._any_of = any_of
        self._position = 0

    def rest(self) -> str:
        return self._text[self._position :].strip()

    def parse_or(self) -> bool:
        holds = self._parse_and()
        while self._take_word("OR") or (self._any_of and self._has_more()):
            other = self._parse_and()
            holds = holds or other
        return holds

    def _parse_and(self) -> bool:
        holds = self._parse_term()
        while self._take_word("AND") or (not self._any_of and self._has_more()):
            other = self._parse_term()
            holds = holds and other
        return holds

    def _parse_term(self) -> bool:
        negation = _NOT.match(self._text, self._position)
        if negation is not None:
            self._position = negation.end()
            return not self._parse_term()
        if self.rest().startswith("("):
            self._position = self._text.index("(", self._position) + 1
            holds = self.parse_or()
            if not self.rest().startswith(")"):
                raise InvalidFilter(self._text)
            self._position = self._text.index(")", self._position) + 1
            return holds
        term = _TERM.match(self._text, self._position)
        if term is None:
            raise InvalidFilter(self._text)
        self._position = term.end()
        quoted = term[3] if term[3] is not None else term[4]
        expected = re.sub(r"\\([\"'])", r"\1", quoted) if quoted is not None else term[5]
        return self._compare(self._row, term[1], term[2].strip(), expected)

    def _has_more(self) -> bool:
        rest = self.rest()
        return bool(rest) and not rest.startswith(")") and _WORD.match(rest) is None

    def _take_word(self, word: str) -> bool:
        match = _WORD.match(self._text, self._position)
        if match is None or match[1] != word:
            return False
        self._position = match.end()
        return True


def _compare_field(row: Row, field: str, operator: str, expected: str) -> bool:
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
            raise InvalidFilter(expected) from error
        return is_equal == (operator == "eq")
    if operator == ":":
        return value is not None if expected == "*" else expected.strip("*") in actual
    is_equal = matches_pattern(actual, expected) if "*" in expected else actual == expected
    return is_equal == (operator == "=")
