"""GitHub's expressions, as far as the workflows under test have them.

After docs.github.com, "Evaluate expressions in workflows and actions"; anything else is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["evaluate", "holds", "interpolated"]

TOKEN = re.compile(r"\s*(?:('(?:[^']|'')*')|(&&|\|\||==|!=|[()!,.])|([A-Za-z_][\w-]*)|$)")
STATUS = ("success", "always", "failure", "cancelled")
EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)
Functions = Mapping[str, Callable[[], bool]]


def interpolated(text: Any, context: Mapping[str, Any], functions: Functions | None = None) -> Any:
    """A value of the workflow with its expressions evaluated; text stays text."""
    if not isinstance(text, str):
        return text
    return EXPRESSION.sub(lambda match: to_text(evaluate(match[1], context, functions)), text)


def holds(condition: Any, context: Mapping[str, Any], functions: Functions) -> bool:
    """An `if`; one without a status function means that nothing before it failed."""
    text = "" if condition is None else str(condition).strip()
    text = text[3:-2].strip() if text.startswith("${{") else text
    asks = any(re.search(rf"\b{name}\(", text) for name in STATUS)
    if not text:
        return functions["success"]()
    return (asks or functions["success"]()) and bool(evaluate(text, context, functions))


def evaluate(text: str, context: Mapping[str, Any], functions: Functions | None = None) -> Any:
    tokens = []
    place = 0
    while place < len(text.rstrip()):
        match = TOKEN.match(text, place)
        assert match is not None and match.end() > place, f"not emulated: {text[place:]!r}"
        tokens.append(match[1] or match[2] or match[3])
        place = match.end()
    parser = _Parser([token for token in tokens if token], context, functions or {})
    value = parser.either()
    assert not parser.tokens, f"not emulated: {text!r}"
    return value


def to_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


class _Parser:
    def __init__(self, tokens: list[str], context: Mapping[str, Any], functions: Functions) -> None:
        self.tokens, self.context, self.functions = tokens, context, functions

    def _took(self, token: str) -> bool:
        if self.tokens and self.tokens[0] == token:
            self.tokens.pop(0)
            return True
        return False

    def either(self) -> Any:
        value = self.both()
        while self._took("||"):
            other = self.both()
            value = value or other
        return value

    def both(self) -> Any:
        value = self.compared()
        while self._took("&&"):
            other = self.compared()
            value = value and other
        return value

    def compared(self) -> Any:
        value = self.element()
        for sign in ("==", "!="):
            if self._took(sign):
                # Text is compared without regard to case.
                same = to_text(value).lower() == to_text(self.element()).lower()
                return same if sign == "==" else not same
        return value

    def element(self) -> Any:
        if self._took("!"):
            return not self.element()
        if self._took("("):
            value = self.either()
            assert self._took(")")
            return value
        token = self.tokens.pop(0)
        if token.startswith("'"):
            return token[1:-1].replace("''", "'")
        if self._took("("):
            assert self._took(")"), f"not emulated: {token}() with arguments"
            return self.functions[token]()
        assert token in self.context, f"no such context: {token}"
        value = self.context[token]
        while self._took("."):
            name = self.tokens.pop(0)
            value = value.get(name) if isinstance(value, Mapping) else None
        return value
