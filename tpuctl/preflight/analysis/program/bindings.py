"""Bindings of names and attributes in a file."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from tpuctl.preflight.analysis.program.source import Module
from tpuctl.preflight.analysis.program.syntax import SCOPES, parameters_of

Key = tuple[ast.AST, str]
BINDING_NODES = (
    *(ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr, ast.For, ast.AsyncFor),
    *(ast.comprehension, ast.withitem),
)


class Binding(NamedTuple):
    """One binding of a name: to the value of an expression or a part of it."""

    value: ast.expr | None = None  # None for a definition, a parameter, or if unknown
    is_element: bool = False  # bound to each element of the value
    items: tuple[int, ...] = ()  # bound to an item of that, by its position in nested tuples
    is_updated: bool = False  # bound to a combination with the previous value
    parameter: ast.arg | None = None
    definition: ast.AST | None = None  # of a function or class

    @property
    def is_plain(self) -> bool:
        """Whether the name is bound to the value itself."""
        return not (self.is_element or self.items or self.is_updated)


def bindings_of(module: Module) -> dict[Key, list[Binding]]:
    """All bindings of a file by scope and name, in source order.

    Attributes of `self` are listed under their class, as `self.name`.
    """
    bindings: dict[Key, list[Binding]] = defaultdict(list)
    shared: set[Key] = set()
    for node in module.of_types(*BINDING_NODES, *SCOPES, ast.Global, ast.Nonlocal):
        if isinstance(node, BINDING_NODES):
            for target, binding in _bindings_in(node):
                for key in _keys(module, target):
                    bindings[key].append(binding)
        elif isinstance(node, SCOPES[1:]):
            if not isinstance(node, ast.Lambda):
                bindings[_scope_of(module, node), node.name].append(Binding(definition=node))
            if not isinstance(node, ast.ClassDef):
                for parameter in parameters_of(node):
                    bindings[node, parameter.arg].append(Binding(parameter=parameter))
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            scope = _scope_of(module, node)
            shared.update((scope, name) for name in node.names)
    for scope, name in shared:
        bindings[module.tree, name] += bindings.pop((scope, name), [])
    return bindings


def _scope_of(module: Module, node: ast.AST) -> ast.AST:
    """The innermost function, class or module around a node."""
    scope: ast.AST = module.enclosing(node, SCOPES) or module.tree
    return scope


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
                yield from _unpacked(target, Binding(value))
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield target, Binding(value)
        case ast.NamedExpr(target=target, value=value):
            yield target, Binding(value)
        case ast.AugAssign(target=target, value=value):
            yield target, Binding(value, is_updated=True)
        case (
            ast.For(target=target, iter=value)
            | ast.AsyncFor(target=target, iter=value)
            | ast.comprehension(target=target, iter=value)
        ):
            yield from _unpacked(target, Binding(value, is_element=True))
        case ast.withitem(optional_vars=ast.expr() as target, context_expr=value):
            yield from _unpacked(target, Binding(value))


def _unpacked(target: ast.expr, binding: Binding) -> Iterator[tuple[ast.expr, Binding]]:
    if not isinstance(target, (ast.Tuple, ast.List)):
        yield target, binding
        return
    if any(isinstance(element, ast.Starred) for element in target.elts):
        binding = Binding()  # the positions of the items are unknown
    parts = getattr(binding.value, "elts", ()) if binding.is_plain else ()
    for number, element in enumerate(target.elts):
        if len(parts) == len(target.elts):
            yield from _unpacked(element, Binding(parts[number]))
        else:
            yield from _unpacked(element, binding._replace(items=(*binding.items, number)))
