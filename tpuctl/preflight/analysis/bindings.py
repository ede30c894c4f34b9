"""What names are given in a file, and what functions take and return."""

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
    """One thing that a name stands for: an expression, or what it has as an element."""

    value: ast.expr | None  # None if unknown
    parameter: ast.arg | None = None
    is_element: bool = False


def bindings_of(module: Module) -> dict[Key, list[Binding]]:
    """All of a file by scope and name, in the order of the source.

    Attributes that a class gives itself stand under the class, as `self.name`.
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
    """The function, class or file that a part stands in."""
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
    """What a scope's names are assigned, without those of functions in it."""
    assignments: dict[str, list[ast.AST]] = defaultdict(list)
    body = getattr(scope, "body", [])
    waiting: list[ast.AST] = list(body) if isinstance(body, list) else []
    while waiting:
        node = waiting.pop(0)
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
        waiting.extend(part for part in ast.iter_child_nodes(node) if isinstance(part, ast.stmt))
        waiting.extend(part for part in getattr(node, "handlers", []))
    return assignments


def _record(assignments: dict[str, list[ast.AST]], target: ast.expr, value: ast.expr) -> None:
    if isinstance(target, ast.Name):
        assignments[target.id].append(value)
    elif isinstance(target, (ast.Tuple, ast.List)):
        parts = value.elts if isinstance(value, (ast.Tuple, ast.List)) else []
        for place, element in enumerate(target.elts):
            if isinstance(element, ast.Name):
                same = len(parts) == len(target.elts)
                assignments[element.id].append(parts[place] if same else ast.Pass())


def members_of(owner: ast.ClassDef) -> dict[str, list[tuple[ast.expr, ast.AST]]]:
    """What the methods of a class assign to `self`, and in which one."""
    members: dict[str, list[tuple[ast.expr, ast.AST]]] = defaultdict(list)
    for method in owner.body:
        if isinstance(method, ast.Assign):
            for target in method.targets:
                if isinstance(target, ast.Name):
                    members[target.id].append((method.value, owner))
        if not isinstance(method, ast.FunctionDef):
            continue
        waiting: list[ast.AST] = [method]
        for node in waiting:  # it grows
            waiting += parts_of(node)
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Attribute) and dotted(target.value) == "self":
                        members[target.attr].append((node.value, method))
    return members
