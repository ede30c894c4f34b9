"""Loops and conditionals around a node, in the same function."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from tpuctl.preflight.analysis.program.source import Module
from tpuctl.preflight.analysis.program.syntax import FUNCTIONS, SCOPES, dotted, walk

Loop = ast.For | ast.AsyncFor | ast.While
LOOPS = (ast.For, ast.AsyncFor, ast.While)
BRANCHES = (ast.If, ast.IfExp, ast.Try, ast.TryStar, ast.Match, ast.BoolOp)
LEAVING = (ast.Return, ast.Continue, ast.Break)
EXITING_FUNCTIONS = ("sys.exit", "exit", "quit", "os._exit")


def loop_around(module: Module, node: ast.AST) -> Loop | None:
    """The innermost loop of the same function whose body contains a node."""
    if loop_around not in module.cache:
        module.cache[loop_around] = _loops_by_node(module)
    loop: Loop | None = module.cache[loop_around].get(node)
    return loop


def _loops_by_node(module: Module) -> dict[ast.AST, Loop]:
    """The loop around each node that is in one; most are in none."""
    loops: dict[ast.AST, Loop] = {}
    for loop in module.of_types(*LOOPS):  # outer ones first
        pending: list[ast.AST] = list(loop.body)
        for node in pending:  # grows during iteration
            loops[node] = loop
            if not isinstance(node, SCOPES):
                pending += module.parts.get(node, ())
    return loops


def is_in_branch(module: Module, node: ast.AST, outer: ast.AST | None) -> bool:
    """Whether a conditional below `outer`, or below the function, decides if a node runs.

    So does an earlier conditional that may leave the function or the loop.
    """
    below = node
    for ancestor in module.ancestors(node):
        body = getattr(ancestor, "body", [])
        if isinstance(body, list) and below in body:
            before = body[: body.index(below)]
            if any(isinstance(part, ast.If) and _leaves(part) for part in before):
                return True
        if ancestor is outer or isinstance(ancestor, FUNCTIONS):
            return False
        is_choice = isinstance(ancestor, BRANCHES) and not is_main_guard(ancestor)
        if is_choice and below is not _decision(ancestor):
            return True
        below = ancestor
    return False


def statements_after(module: Module, statement: ast.stmt) -> Iterator[ast.stmt]:
    """The statements of the same function that may run after one, the next first.

    After the last one in a loop, these are those of its next iteration.
    """
    below: ast.AST = statement
    for ancestor in module.ancestors(statement):
        block = _block_of(ancestor, below)
        if block:
            number = block.index(below)
            yield from block[number + 1 :]
            if isinstance(ancestor, LOOPS) and block is ancestor.body:
                yield from block[: number + 1]
        if isinstance(ancestor, SCOPES):
            return
        below = ancestor


def statements_before(module: Module, statement: ast.stmt) -> Iterator[ast.stmt]:
    """The statements of the same function before one, the last first, as in the first iteration
    of loops."""
    below: ast.AST = statement
    for ancestor in module.ancestors(statement):
        block = _block_of(ancestor, below)
        yield from reversed(block[: block.index(below)] if block else [])
        if isinstance(ancestor, SCOPES):
            return
        below = ancestor


def _block_of(node: ast.AST, statement: ast.AST) -> list[Any]:
    """The statements of a node among which one is."""
    blocks = [getattr(node, name, None) for name in ("body", "orelse", "finalbody")]
    return next((block for block in blocks if isinstance(block, list) and statement in block), [])


def _decision(node: ast.AST) -> ast.AST | None:
    """The expression of a conditional that is always evaluated."""
    return node.values[0] if isinstance(node, ast.BoolOp) else getattr(node, "test", None)


def _leaves(node: ast.If) -> bool:
    return any(
        isinstance(part, LEAVING)
        or (isinstance(part, ast.Call) and dotted(part.func) in EXITING_FUNCTIONS)
        for part in walk(node)
    )


def is_main_guard(node: ast.AST) -> bool:
    """Whether a node is `if __name__ == "__main__"`."""
    return isinstance(node, ast.If) and "__name__" in names_in(node.test)


def names_bound_in(node: ast.AST) -> set[str]:
    """The names that a statement assigns or deletes, also in functions."""
    return {
        part.id
        for part in walk(node)
        if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load)
    }


def names_in(node: ast.AST) -> set[str]:
    """The names that an expression reads."""
    return {
        part.id
        for part in walk(node)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)
    }
