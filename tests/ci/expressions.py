"""Evaluates the GitHub expressions that the workflows under test use.

See "Evaluate expressions in workflows and actions" on docs.github.com; anything else is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

TOKEN = re.compile(r"\s*(?:('(?:[^']|'')*')|(&&|\|\||==|!=|[()!,.])|([A-Za-z_][\w-]*)|$)")
STATUS = ("success", "always", "failure", "cancelled")
EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)
Functions = Mapping[str, Callable[[], bool]]


def interpolate(text: Any, context: Mapping[str, Any], functions: Functions | None = None) -> Any:
    """Replace the expressions in a workflow's value; other values are returned unchanged."""
    if not isinstance(text, str):
        return text
    return EXPRESSION.sub(lambda match: to_text(evaluate(match[1], context, functions)), text)


def is_true(condition: Any, context: Mapping[str, Any], functions: Functions) -> bool:
    """Evaluate an `if`; without a status function it also requires `success()`."""
    text = "" if condition is None else str(condition).strip()
    text = text[3:-2].strip() if text.startswith("${{") else text
    has_status_function = any(re.search(rf"\b{name}\(", text) for name in STATUS)
    if not text:
        return functions["success"]()
    return (has_status_function or functions["success"]()) and bool(
        evaluate(text, context, functions)
    )


def evaluate(text: str, context: Mapping[str, Any], functions: Functions | None = None) -> Any:
    tokens = []
    position = 0
    while position < len(text.rstrip()):
        match = TOKEN.match(text, position)
        assert match is not None and match.end() > position, f"not emulated: {text[position:]!r}"
        tokens.append(match[1] or match[2] or match[3])
        position = match.end()
    parser = _Parser([token for token in tokens if token], context, functions or {})
    value = parser.parse_or()
    assert not parser.tokens, f"not emulated: {text!r}"
    return value


def to_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


class _Parser:
    def __init__(self, tokens: list[str], context: Mapping[str, Any], functions: Functions) -> None:
        self.tokens, self.context, self.functions = tokens, context, functions

    def _accept(self, token: str) -> bool:
        if self.tokens and self.tokens[0] == token:
            self.tokens.pop(0)
            return True
        return False

    def parse_or(self) -> Any:
        value = self.parse_and()
        while self._accept("||"):
            other = self.parse_and()
            value = value or other
        return value

    def parse_and(self) -> Any:
        value = self.parse_comparison()
        while self._accept("&&"):
            other = self.parse_comparison()
            value = value and other
        return value

    def parse_comparison(self) -> Any:
        value = self.parse_operand()
        for sign in ("==", "!="):
            if self._accept(sign):
                # Comparisons ignore case.
                is_equal = to_text(value).lower() == to_text(self.parse_operand()).lower()
                return is_equal if sign == "==" else not is_equal
        return value

    def parse_operand(self) -> Any:
        if self._accept("!"):
            return not self.parse_operand()
        if self._accept("("):
            value = self.parse_or()
            assert self._accept(")")
            return value
        token = self.tokens.pop(0)
        if token.startswith("'"):
            return token[1:-1].replace("''", "'")
        if self._accept("("):
            assert self._accept(")"), f"not emulated: {token}() with arguments"
            return self.functions[token]()
        assert token in self.context, f"no such context: {token}"
        value = self.context[token]
        while self._accept("."):
            name = self.tokens.pop(0)
            value = value.get(name) if isinstance(value, Mapping) else None
        return value
