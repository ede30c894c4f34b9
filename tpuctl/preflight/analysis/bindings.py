"""Bindings of names and attributes in a file."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from tpuctl.preflight.analysis.source import Module
from tpuctl.preflight.analysis.syntax import SCOPES, dotted, parameters_of, parts_of

__all__ = ["Binding", "assignments_of", "bindings_of", "members_of"]

Key = tuple[ast.AST, str]


@dataclass(frozen=True)
class Binding:
    """One binding of a name: to an expression, or to its elements."""

    value: ast.expr | None  # None if unknown
    parameter: ast.arg | None = None
    is_element: bool = False


def bindings_of(module: Module) -> dict[Key, list[Binding]]:
    """All bindings of a file by scope and name, in source order.

    Attributes of `self` are listed under their class, as `self.name`.
    """
    bindings: dict[Key, list[Binding]] = defaultdict(list)
    shared: set[Key] = set()
    for node in module.nodes:
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            scope = _scope_of(module, node)
            shared.update((scope, name) for name in node.names)
    for node in module.nodes:
        for target, binding in _bindings_in(node):
            for key in _keys(module, target):
                bindings[(module.tree, key[1]) if key in shared else key].append(binding)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            for parameter in parameters_of(node):
                bindings[node, parameter.arg].append(Binding(None, parameter))
    return bindings


def _scope_of(module: Module, node: ast.AST) -> ast.AST:
    """The innermost function, class or module around a node."""
    return next(ancestor for ancestor in module.ancestors(node) if isinstance(ancestor, SCOPES))


def _keys(module: Module, target: ast.expr) -> Iterator[Key]:
    if isinstance(target, ast.Name):
        yield _scope_of(module, target), target.id
    elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
        around = module.enclosing_class(target)
        if target.value.id in ("self", "cls") and around is not None:
            yield around, f"self.{target.attr}"


def _bindings_in(node: ast.AST) -> Iterator[tuple[ast.expr, Binding]]:
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from _unpacked(target, value)
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield target, Binding(value)
        case ast.NamedExpr(target=target, value=value):
            yield target, Binding(value)
        case ast.AugAssign(target=target):
            yield target, Binding(None)
        case ast.For(target=target, iter=value) | ast.AsyncFor(target=target, iter=value):
            yield from _unpacked(target, None if not isinstance(target, ast.Name) else value, True)
        case ast.comprehension(target=target, iter=value):
            yield from _unpacked(target, None if not isinstance(target, ast.Name) else value, True)
        case ast.withitem(optional_vars=ast.expr() as target, context_expr=value):
            yield from _unpacked(target, value)


def _unpacked(
    target: ast.expr, value: ast.expr | None, is_element: bool = False
) -> Iterator[tuple[ast.expr, Binding]]:
    if not isinstance(target, (ast.Tuple, ast.List)):
        yield target, Binding(value, is_element=is_element)
        return
    parts: list[ast.expr | None] = [None] * len(target.elts)
    if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(parts):
        parts = list(value.elts)
    for element, part in zip(target.elts, parts, strict=True):
        yield from _unpacked(element, part)


def assignments_of(scope: ast.AST) -> dict[str, list[ast.AST]]:
    """The values assigned to the names of a scope, without nested functions."""
    assignments: dict[str, list[ast.AST]] = defaultdict(list)
    body = getattr(scope, "body", [])
    pending: list[ast.AST] = list(body) if isinstance(body, list) else []
    while pending:
        node = pending.pop(0)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            assignments[node.name].append(node)
            continue
        if isinstance(node, ast.Assign):
            for target in node.targets:
                _record(assignments, target, node.value)
        elif isinstance(node, (ast.AnnAssign, ast.AugAssign)) and node.value is not None:
            _record(assignments, node.target, node.value)
        elif isinstance(node, ast.For):
            for part in ast.walk(node.target):
                if isinstance(part, ast.Name):
                    assignments[part.id].append(node)
        elif isinstance(node, ast.With):
            for item in node.items:
                if isinstance(item.optional_vars, ast.Name):
                    assignments[item.optional_vars.id].append(item.context_expr)
        pending.extend(part for part in ast.iter_child_nodes(node) if isinstance(part, ast.stmt))
        pending.extend(part for part in getattr(node, "handlers", []))
    return assignments


def _record(assignments: dict[str, list[ast.AST]], target: ast.expr, value: ast.expr) -> None:
    if isinstance(target, ast.Name):
        assignments[target.id].append(value)
    elif isinstance(target, (ast.Tuple, ast.List)):
        parts = value.elts if isinstance(value, (ast.Tuple, ast.List)) else []
        for index, element in enumerate(target.elts):
            if isinstance(element, ast.Name):
                is_same_length = len(parts) == len(target.elts)
                assignments[element.id].append(parts[index] if is_same_length else ast.Pass())


def members_of(owner: ast.ClassDef) -> dict[str, list[tuple[ast.expr, ast.AST]]]:
    """The values assigned to attributes of a class, and the methods that assign them."""
    members: dict[str, list[tuple[ast.expr, ast.AST]]] = defaultdict(list)
    for method in owner.body:
        if isinstance(method, ast.Assign):
            for target in method.targets:
                if isinstance(target, ast.Name):
                    members[target.id].append((method.value, owner))
        if not isinstance(method, ast.FunctionDef):
            continue
        pending: list[ast.AST] = [method]
        for node in pending:  # grows during iteration
            pending += parts_of(node)
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Attribute) and dotted(target.value) == "self":
                        members[target.attr].append((node.value, method))
    return members
