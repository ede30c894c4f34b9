"""How rules about traced code say what they found."""

from __future__ import annotations

import ast

from tpuctl.preflight.analysis.source import Module
from tpuctl.preflight.analysis.traced import Traced
from tpuctl.preflight.findings import Finding, Severity

__all__ = ["at", "named_part", "shown"]

LONGEST = 60
UNREACHED = "; an error if a step runs it, and none is known to"


def at(
    where: Module | Traced,
    node: ast.AST,
    code: str,
    severity: Severity,
    message: str,
    hint: str = "",
) -> Finding:
    """A finding at a part of a file, or of a traced function.

    An error in a function that no step reaches is a risk: only if a step comes to call it.
    """
    module = where
    if isinstance(where, Traced):
        module = where.module
        if severity is Severity.error and not where.is_reached:
            severity = Severity.risk
            message += UNREACHED
    assert isinstance(module, Module)
    line: int = getattr(node, "lineno", 1)
    column = module.column(line, getattr(node, "col_offset", 0))
    return Finding(code, severity, module.path, line, column, message, hint)


def shown(module: Module, node: ast.AST) -> str:
    """A part's source between backticks, cut where it is long."""
    text = module.segment(node)
    return f"`{text}`" if len(text) <= LONGEST else f"`{text[: LONGEST - 1].rstrip()}…`"


def named_part(node: ast.Call) -> ast.AST:
    """Where the method stands, not where its chain of calls begins."""
    func = node.func
    assert isinstance(func, ast.Attribute)
    made = ast.copy_location(ast.Attribute(func.value, func.attr, ast.Load()), node)
    made.lineno = func.end_lineno or node.lineno
    made.col_offset = (func.end_col_offset or 0) - len(func.attr)
    made.end_lineno, made.end_col_offset = node.end_lineno, node.end_col_offset
    return made
