"""Findings at a part of the source, and what the source says around it."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from tpuctl.preflight.analysis.source import Module
from tpuctl.preflight.findings import Edit, Finding, Severity

__all__ = ["edit_of", "found_at", "is_excused", "keyword_edit"]

Placed = ast.expr | ast.stmt | ast.keyword


def found_at(
    code: str,
    severity: Severity,
    module: Module,
    node: Placed,
    message: str,
    hint: str = "",
    edits: Iterable[Edit] = (),
) -> Finding:
    """A finding where a part begins."""
    column = module.column(node.lineno, node.col_offset)
    return Finding(code, severity, module.path, node.lineno, column, message, hint, tuple(edits))


def edit_of(module: Module, node: Placed, text: str) -> Edit:
    """Another text in the place of a part."""
    end_line, end_offset = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
    return Edit(
        module.path,
        node.lineno,
        module.column(node.lineno, node.col_offset),
        end_line,
        module.column(end_line, end_offset),
        text,
    )


def keyword_edit(module: Module, call: ast.Call, keyword: ast.keyword) -> Edit | None:
    """Take a keyword out of a call, with its comma; None where comments stand between."""
    given: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
    parts = sorted(given, key=lambda one: (one.lineno, one.col_offset))
    number = parts.index(keyword)
    if number:  # from the end of what is before it, to its own end
        before = parts[number - 1]
        line, offset = before.end_lineno or 1, before.end_col_offset or 0
        end_line, end_offset = keyword.end_lineno or 1, keyword.end_col_offset or 0
    elif len(parts) > 1:  # from its beginning to that of what is behind it
        line, offset = keyword.lineno, keyword.col_offset
        end_line, end_offset = parts[1].lineno, parts[1].col_offset
    else:
        line, offset = keyword.lineno, keyword.col_offset
        end_line, end_offset = keyword.end_lineno or 1, keyword.end_col_offset or 0
    if any("#" in text for text in module.lines[line - 1 : end_line]):
        return None
    start, end = module.column(line, offset), module.column(end_line, end_offset)
    return Edit(module.path, line, start, end_line, end, "")


def is_excused(module: Module, node: ast.AST, words: Iterable[str]) -> bool:
    """Whether it stands in a conditional whose question has one of the words in it."""
    for one in module.around(node):
        if isinstance(one, (ast.If, ast.IfExp)):
            question = module.segment(one.test).lower()
            if any(word in question for word in words):
                return True
    return False
