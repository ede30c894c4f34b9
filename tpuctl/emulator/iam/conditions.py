"""Conditions of bindings: the subset of the Common Expression Language used in IAM's guides.

holds('resource.name.startsWith("projects/_/buckets/b/objects/in/")', {"resource.name": ...})

Supported: `resource.name`, `resource.type`, `resource.service` and `request.time` (with
timestamp("…") and comparisons), startsWith, endsWith and contains, `==`, `!=`, `&&`, `||`, `!` and
parentheses. A condition with anything else evaluates to false, so it grants nothing.
"""

from __future__ import annotations

import logging
import operator
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

__all__ = ["UnsupportedCondition", "holds"]

log = logging.getLogger(__name__)

Attributes = Mapping[str, Any]

_TOKEN = re.compile(
    r"\s*(?:(?P<text>\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*')"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*)"
    r"|(?P<sign>&&|\|\||==|!=|<=|>=|[<>!()]))"
)
_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_TEXT_METHODS: Mapping[str, Callable[[str, str], bool]] = {
    "startsWith": str.startswith,
    "endsWith": str.endswith,
    "contains": lambda text, part: part in text,
}
_MAX_DEPTH = 50


class UnsupportedCondition(ValueError):
    """An invalid expression, or one that is not supported."""


def holds(expression: str, attributes: Attributes) -> bool:
    """Evaluate the condition; an unsupported one is logged and false."""
    try:
        reader = _Evaluator(expression, attributes)
        value = reader.parse_or()
        if reader.sign or reader.name or reader.text is not None or not isinstance(value, bool):
            raise UnsupportedCondition(expression)
        return value
    except UnsupportedCondition:
        log.warning("unsupported condition grants nothing: %s", expression)
        return False


class _Evaluator:
    """Recursive descent evaluator. It evaluates both sides: expressions have no side effects."""

    def __init__(self, expression: str, attributes: Attributes) -> None:
        self._rest = expression.strip()
        self._attributes = attributes
        self._depth = 0
        self.text: str | None = None
        self.name = self.sign = ""
        self._advance()

    def _advance(self) -> None:
        self.text, self.name, self.sign = None, "", ""
        if not self._rest:
            return
        match = _TOKEN.match(self._rest)
        if match is None:
            raise UnsupportedCondition(self._rest)
        self._rest = self._rest[match.end() :].lstrip()
        self.name, self.sign = match["name"] or "", match["sign"] or ""
        if match["text"] is not None:
            self.text = re.sub(r"\\(.)", r"\1", match["text"][1:-1])

    def _expect(self, sign: str) -> None:
        if self.sign != sign:
            raise UnsupportedCondition(f"{sign} is missing before {self._rest!r}")
        self._advance()

    def parse_or(self) -> Any:
        value = self._parse_and()
        while self.sign == "||":
            self._advance()
            other = self._parse_and()
            value = _require_bool(value) or _require_bool(other)
        return value

    def _parse_and(self) -> Any:
        value = self._parse_comparison()
        while self.sign == "&&":
            self._advance()
            other = self._parse_comparison()
            value = _require_bool(value) and _require_bool(other)
        return value

    def _parse_comparison(self) -> Any:
        value = self._parse_term()
        compare = _COMPARISONS.get(self.sign)
        if compare is None:
            return value
        self._advance()
        other = self._parse_term()
        if type(value) is not type(other):
            raise UnsupportedCondition("values of different types are compared")
        return compare(value, other)

    def _parse_term(self) -> Any:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise UnsupportedCondition("nested too deeply")
        try:
            if self.sign == "!":
                self._advance()
                return not _require_bool(self._parse_term())
            if self.sign == "(":
                self._advance()
                value = self.parse_or()
                self._expect(")")
                return value
            if self.text is not None:
                value = self.text
                self._advance()
                return value
            return self._parse_name()
        finally:
            self._depth -= 1

    def _parse_name(self) -> Any:
        name = self.name
        if not name:
            raise UnsupportedCondition("a value is missing")
        self._advance()
        if name in ("true", "false"):
            return name == "true"
        if self.sign != "(":
            if name not in self._attributes:
                raise UnsupportedCondition(f"unknown attribute {name}")
            return self._attributes[name]
        self._advance()
        argument = self.parse_or()
        self._expect(")")
        if not isinstance(argument, str):
            raise UnsupportedCondition(f"{name} takes a string")
        if name == "timestamp":
            return _parse_timestamp(argument)
        subject, _, method = name.rpartition(".")
        text_method = _TEXT_METHODS.get(method)
        if text_method is None or not isinstance(self._attributes.get(subject), str):
            raise UnsupportedCondition(f"{name}() is not supported")
        return text_method(self._attributes[subject], argument)


def _require_bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise UnsupportedCondition("a boolean is missing")
    return value


def _parse_timestamp(text: str) -> datetime:
    try:
        timestamp = datetime.fromisoformat(text)
    except ValueError as error:
        raise UnsupportedCondition(str(error)) from error
    if timestamp.tzinfo is None:
        raise UnsupportedCondition(f"{text} has no time zone")
    return timestamp
