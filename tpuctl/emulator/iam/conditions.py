"""Conditions of bindings: the part of the Common Expression Language that IAM's guides use.

holds('resource.name.startsWith("projects/_/buckets/b/objects/in/")', {"resource.name": ...})

Known are `resource.name`, `resource.type`, `resource.service` and `request.time` (with
timestamp("…") and comparisons), startsWith, endsWith and contains, `==`, `!=`, `&&`, `||`, `!` and
parentheses. Whatever else a condition says, it does not hold: what is not understood grants
nothing.
"""

from __future__ import annotations

import logging
import operator
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

__all__ = ["NotUnderstood", "holds"]

log = logging.getLogger(__name__)

Facts = Mapping[str, Any]

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
    "contains": lambda whole, part: part in whole,
}
_DEEPEST = 50


class NotUnderstood(ValueError):
    """An expression that is none, or one that is not imitated."""


def holds(expression: str, facts: Facts) -> bool:
    """Whether the condition is met; False for one that is not understood, which is logged."""
    try:
        reader = _Reader(expression, facts)
        value = reader.either()
        if reader.sign or reader.name or reader.text is not None or not isinstance(value, bool):
            raise NotUnderstood(expression)
        return value
    except NotUnderstood:
        log.warning("a condition is not understood, and so grants nothing: %s", expression)
        return False


class _Reader:
    """Evaluates while it reads. Both sides are always evaluated: nothing here has effects."""

    def __init__(self, expression: str, facts: Facts) -> None:
        self._left = expression.strip()
        self._facts = facts
        self._depth = 0
        self.text: str | None = None
        self.name = self.sign = ""
        self._step()

    def _step(self) -> None:
        self.text, self.name, self.sign = None, "", ""
        if not self._left:
            return
        found = _TOKEN.match(self._left)
        if found is None:
            raise NotUnderstood(self._left)
        self._left = self._left[found.end() :].lstrip()
        self.name, self.sign = found["name"] or "", found["sign"] or ""
        if found["text"] is not None:
            self.text = re.sub(r"\\(.)", r"\1", found["text"][1:-1])

    def _take(self, sign: str) -> None:
        if self.sign != sign:
            raise NotUnderstood(f"{sign} is missing before {self._left!r}")
        self._step()

    def either(self) -> Any:
        value = self._both()
        while self.sign == "||":
            self._step()
            other = self._both()
            value = _claim(value) or _claim(other)
        return value

    def _both(self) -> Any:
        value = self._comparison()
        while self.sign == "&&":
            self._step()
            other = self._comparison()
            value = _claim(value) and _claim(other)
        return value

    def _comparison(self) -> Any:
        value = self._one()
        compare = _COMPARISONS.get(self.sign)
        if compare is None:
            return value
        self._step()
        other = self._one()
        if type(value) is not type(other):
            raise NotUnderstood("values of different types are compared")
        return compare(value, other)

    def _one(self) -> Any:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise NotUnderstood("it is nested too deep")
        try:
            if self.sign == "!":
                self._step()
                return not _claim(self._one())
            if self.sign == "(":
                self._step()
                value = self.either()
                self._take(")")
                return value
            if self.text is not None:
                value = self.text
                self._step()
                return value
            return self._named()
        finally:
            self._depth -= 1

    def _named(self) -> Any:
        name = self.name
        if not name:
            raise NotUnderstood("a value is missing")
        self._step()
        if name in ("true", "false"):
            return name == "true"
        if self.sign != "(":
            if name not in self._facts:
                raise NotUnderstood(f"{name} is not known")
            return self._facts[name]
        self._step()
        argument = self.either()
        self._take(")")
        if not isinstance(argument, str):
            raise NotUnderstood(f"{name} takes a text")
        if name == "timestamp":
            return _moment(argument)
        subject, _, method = name.rpartition(".")
        ask = _TEXT_METHODS.get(method)
        if ask is None or not isinstance(self._facts.get(subject), str):
            raise NotUnderstood(f"{name}() is not imitated")
        return ask(self._facts[subject], argument)


def _claim(value: Any) -> bool:
    if not isinstance(value, bool):
        raise NotUnderstood("a claim is missing")
    return value


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise NotUnderstood(str(error)) from error
    if moment.tzinfo is None:
        raise NotUnderstood(f"{text} has no time zone")
    return moment
