"""Partial responses: select fields, as `fields=items(name,size),nextPageToken`.

cloud.google.com/storage/docs/json_api#partial-response
"""

from __future__ import annotations

import re
from typing import Any

from tpuctl.emulator.state.errors import invalid

_TOKEN = re.compile(r"[(),/]|[^(),/]+")
Tree = dict[str, "Tree"]  # an empty one selects everything


def select_fields(value: Any, fields: str) -> Any:
    """The fields of a JSON value that a selector names; all of them if it is empty."""
    if not fields:
        return value
    tokens = _TOKEN.findall(fields)
    try:
        tree = _read_list(tokens)
        if tokens:
            raise ValueError(tokens[0])
    except (ValueError, IndexError) as error:
        raise invalid(
            f"Invalid field selection {fields}",
            reason="invalidParameter",
            location=("parameter", "fields"),
        ) from error
    return _select(value, tree)


def _read_list(tokens: list[str]) -> Tree:
    tree: Tree = {}
    while True:
        _read_path(tokens, tree)
        if not tokens or tokens[0] != ",":
            return tree
        tokens.pop(0)


def _read_path(tokens: list[str], tree: Tree) -> None:
    name = tokens.pop(0).strip()
    if not name or name in "(),/":
        raise ValueError(name)
    inner = tree.setdefault(name, {})
    if tokens and tokens[0] == "/":
        tokens.pop(0)
        _read_path(tokens, inner)
    elif tokens and tokens[0] == "(":
        tokens.pop(0)
        inner.update(_read_list(tokens))
        if tokens.pop(0) != ")":
            raise ValueError("(")


def _select(value: Any, tree: Tree) -> Any:
    if isinstance(value, list):
        return [_select(item, tree) for item in value]
    if not tree or not isinstance(value, dict):
        return value
    everywhere = tree.get("*")
    result = {}
    for key, inner in value.items():
        if key in tree:
            result[key] = _select(inner, tree[key])
        elif everywhere is not None:
            result[key] = _select(inner, everywhere)
    return result
