"""What names are given in a file, and what functions take and return."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from tpuctl.preflight.analysis.source import Function, Module

__all__ = [
    "SCOPES",
    "Binding",
    "argument_of",
    "bindings_of",
    "default_of",
    "parameters_of",
    "returns_of",
]

SCOPES = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
Key = tuple[ast.AST, str]


@dataclass(frozen=True)
class Binding:
    """One thing that a name stands for: an expression, or what it has as an element."""

    value: ast.expr | None  # None: nobody can tell
    parameter: ast.arg | None = None
    is_element: bool = False


def bindings_of(module: Module) -> dict[Key, list[Binding]]:
    """All of a file by scope and name, in the order of the source.

    Attributes that a class gives itself stand under the class, as `self.name`.
    """
    found: dict[Key, list[Binding]] = defaultdict(list)
    shared: set[Key] = set()
    for node in module.nodes:
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            scope = _scope_of(module, node)
            shared.update((scope, name) for name in node.names)
    for node in module.nodes:
        for target, binding in _given(node):
            for key in _keys(module, target):
                found[(module.tree, key[1]) if key in shared else key].append(binding)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            for parameter in parameters_of(node):
                found[node, parameter.arg].append(Binding(None, parameter))
    return found


def _scope_of(module: Module, node: ast.AST) -> ast.AST:
    """The function, class or file that a part stands in."""
    return next(one for one in module.around(node) if isinstance(one, SCOPES))


def _keys(module: Module, target: ast.expr) -> Iterator[Key]:
    if isinstance(target, ast.Name):
        yield _scope_of(module, target), target.id
    elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
        around = module.class_around(target)
        if target.value.id in ("self", "cls") and around is not None:
            yield around, f"self.{target.attr}"


def _given(node: ast.AST) -> Iterator[tuple[ast.expr, Binding]]:
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
    for one, part in zip(target.elts, parts, strict=True):
        yield from _unpacked(one, part)


def parameters_of(function: Function) -> list[ast.arg]:
    """All of its parameters that have a name."""
    taken = function.args
    found = [*taken.posonlyargs, *taken.args, *taken.kwonlyargs]
    return found + [one for one in (taken.vararg, taken.kwarg) if one is not None]


def default_of(function: Function, name: str) -> ast.expr | None:
    """What a parameter is where nobody gives it."""
    taken = function.args
    positional = [*taken.posonlyargs, *taken.args]
    defaults = [None] * (len(positional) - len(taken.defaults)) + list(taken.defaults)
    for one, default in zip(positional, defaults, strict=True):
        if one.arg == name:
            return default
    for one, default in zip(taken.kwonlyargs, taken.kw_defaults, strict=True):
        if one.arg == name:
            return default
    return None


def argument_of(
    function: Function, call: ast.Call, name: str, is_method: bool = False
) -> ast.expr | None:
    """What a call gives for a parameter; a method's first is not among what is given."""
    for one in call.keywords:
        if one.arg == name:
            return one.value
    taken = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    if is_method:
        taken = taken[1:]
    number = taken.index(name) if name in taken else len(call.args)
    given = call.args[: number + 1]
    if number >= len(call.args) or any(isinstance(one, ast.Starred) for one in given):
        return None
    return call.args[number]


def returns_of(function: Function) -> Iterator[ast.Return]:
    """What it returns, without what functions defined in it return."""
    waiting: list[ast.AST] = [] if isinstance(function, ast.Lambda) else list(function.body)
    while waiting:
        one = waiting.pop(0)
        if isinstance(one, ast.Return):
            yield one
        if not isinstance(one, SCOPES):
            waiting.extend(ast.iter_child_nodes(one))
