"""How rules about traced code say what they found."""

from __future__ import annotations

import ast

from tpuctl.preflight.findings import Finding, Severity
from tpuctl.preflight.source import Module

__all__ = ["at", "shown"]

LONGEST = 60


def at(
    module: Module, node: ast.AST, code: str, severity: Severity, message: str, hint: str = ""
) -> Finding:
    """A finding at a part of a file."""
    line: int = getattr(node, "lineno", 1)
    column = module.column(line, getattr(node, "col_offset", 0))
    return Finding(code, severity, module.path, line, column, message, hint)


def shown(module: Module, node: ast.AST) -> str:
    """A part's source between backticks, cut where it is long."""
    text = module.segment(node)
    return f"`{text}`" if len(text) <= LONGEST else f"`{text[: LONGEST - 1].rstrip()}…`"
