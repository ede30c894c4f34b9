"""Findings and edits for nodes of the source, and source text for their messages."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from tpuctl.preflight.analysis.program.source import Module
from tpuctl.preflight.analysis.program.syntax import identifiers_and_texts_in, words_of
from tpuctl.preflight.analysis.tracing.traced import Traced
from tpuctl.preflight.findings import Edit, Finding, Rule, Severity

Placed = ast.expr | ast.stmt | ast.keyword
MAX_QUOTED_CHARS = 60
UNREACHED = "; an error if a step runs it, but no known step does"
UNSURE = "; an error if this code runs"


def finding_at(
    rule: Rule,
    where: Module | Traced,
    node: ast.AST,
    message: str,
    hint: str = "",
    *,
    severity: Severity | None = None,
    edits: Iterable[Edit] = (),
) -> Finding:
    """A finding at the start of a node, with the rule's severity by default.

    An error in a traced function becomes a risk if no step reaches it, or if a conditional decides
    whether it runs.
    """
    severity = severity or rule.severity
    if isinstance(where, Module):
        module = where
    else:
        module = where.module
        is_sure = where.is_reached and where.runs(node)
        if severity is Severity.error and not is_sure:
            severity = Severity.risk
            message += UNSURE if where.is_reached else UNREACHED
    line: int = getattr(node, "lineno", 1)
    column = module.column(line, getattr(node, "col_offset", 0))
    return Finding(rule.code, severity, module.path, line, column, message, hint, tuple(edits))


def quoted(module: Module, node: ast.AST) -> str:
    """The source of a node in backticks, truncated if long."""
    text = module.segment(node)
    return (
        f"`{text}`"
        if len(text) <= MAX_QUOTED_CHARS
        else f"`{text[: MAX_QUOTED_CHARS - 1].rstrip()}…`"
    )


def callee_text(module: Module, call: ast.Call) -> str:
    """The name of the called function, without earlier calls in a method chain."""
    return module.segment(call.func).rpartition("(")[2].rpartition(")")[2][-MAX_QUOTED_CHARS:]


def method_node(node: ast.Call) -> ast.AST:
    """A node at the position of the method name, not at the start of the method chain."""
    func = node.func
    assert isinstance(func, ast.Attribute)
    part = ast.copy_location(ast.Attribute(func.value, func.attr, ast.Load()), node)
    part.lineno = func.end_lineno or node.lineno
    part.col_offset = (func.end_col_offset or 0) - len(func.attr)
    part.end_lineno, part.end_col_offset = node.end_lineno, node.end_col_offset
    return part


def edit_of(module: Module, node: Placed, text: str) -> Edit:
    """An edit that replaces a node."""
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
    """An edit that removes a keyword argument and its comma; None if comments are in between."""
    arguments: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
    parts = sorted(arguments, key=lambda part: (part.lineno, part.col_offset))
    number = parts.index(keyword)
    if number:  # from the end of the previous argument
        before = parts[number - 1]
        line, offset = before.end_lineno or 1, before.end_col_offset or 0
        end_line, end_offset = keyword.end_lineno or 1, keyword.end_col_offset or 0
    elif len(parts) > 1:  # to the start of the next argument
        line, offset = keyword.lineno, keyword.col_offset
        end_line, end_offset = parts[1].lineno, parts[1].col_offset
    else:
        line, offset = keyword.lineno, keyword.col_offset
        end_line, end_offset = keyword.end_lineno or 1, keyword.end_col_offset or 0
    if any("#" in text for text in module.lines[line - 1 : end_line]):
        return None
    start, end = module.column(line, offset), module.column(end_line, end_offset)
    return Edit(module.path, line, start, end_line, end, "")


def is_conditional_on(module: Module, node: ast.AST, words: Iterable[str]) -> bool:
    """Whether a node is inside a conditional on a name or text with one of the words."""
    tests = (
        ancestor.test
        for ancestor in module.ancestors(node)
        if isinstance(ancestor, (ast.If, ast.IfExp))
    )
    return any(
        word.startswith(tuple(words))
        for test in tests
        for word in words_of(identifiers_and_texts_in(test))
    )
