"""Uses that a script makes only where it knows that they are possible."""

from __future__ import annotations

import ast

from tpuctl.preflight.analysis.source import Module

__all__ = ["is_guarded"]

CATCHES = {"AttributeError", "ImportError", "ModuleNotFoundError", "Exception", "BaseException"}
WORDS = ("version", "hasattr", "getattr")


def is_guarded(module: Module, node: ast.AST) -> bool:
    """Whether a use of a name that may be missing is prepared for that.

    It is within `try` that catches what a missing name raises, or in a branch of a question about
    a version or about whether there is such a name.
    """
    before = node
    for one in module.around(node):
        if isinstance(one, ast.Try) and before in one.body and _catches(one):
            return True
        if (
            isinstance(one, ast.Call)
            and isinstance(one.func, ast.Name)
            and one.func.id == "getattr"
        ):
            return True
        if isinstance(one, ast.ExceptHandler) and _names(one) & CATCHES:
            return True
        if isinstance(one, (ast.If, ast.IfExp)) and _asks(module, one.test):
            return before is not one.test or "hasattr" in module.segment(one.test)
        if isinstance(one, ast.BoolOp) and _asks(module, one.values[0]):
            return before is not one.values[0]
        if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)) and _returns_early(
            module, one, node
        ):
            return True
        before = one
    return False


def _catches(node: ast.Try) -> bool:
    return any(handler.type is None or _names(handler) & CATCHES for handler in node.handlers)


def _names(handler: ast.ExceptHandler) -> set[str]:
    if handler.type is None:
        return CATCHES
    parts = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return {one.id for one in parts if isinstance(one, ast.Name)}


def _asks(module: Module, question: ast.expr) -> bool:
    """Whether the answer tells what this TensorFlow has."""
    text = module.segment(question)
    if any(word in text.lower() for word in WORDS):
        return True
    # A name for such an answer: `HAS_RUN = hasattr(strategy, "run")`.
    for one in ast.walk(question):
        if isinstance(one, ast.Name):
            for other in module.nodes:
                if isinstance(other, ast.Assign) and _gives(other, one.id):
                    given = module.segment(other.value).lower()
                    if any(word in given for word in WORDS):
                        return True
    return False


def _gives(node: ast.Assign, name: str) -> bool:
    return any(isinstance(one, ast.Name) and one.id == name for one in node.targets)


def _returns_early(module: Module, function: ast.AST, node: ast.AST) -> bool:
    """Whether a question before has already led away: `if hasattr(…): return …`."""
    line = getattr(node, "lineno", 0)
    return any(
        isinstance(one, ast.If)
        and one.lineno < line
        and isinstance(one.body[-1], (ast.Return, ast.Raise))
        and _asks(module, one.test)
        for one in getattr(function, "body", [])
    )
