"""Helpers for syntax trees: arguments of calls, parameters and bodies of functions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
NESTED = (*FUNCTIONS, ast.ClassDef)
SCOPES = (ast.Module, *NESTED)
# In whatever node they occur: contexts, operators, and texts or numbers.
FIELDS_WITHOUT_NODES = frozenset(
    ("ctx", "op", "ops", "id", "attr", "kind", "module", "level", "asname", "type_comment")
)
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_child_fields: dict[type[ast.AST], tuple[str, ...]] = {}  # by class, filled on first use
_child_fields[ast.Constant] = ()  # its value is no node


def dotted(node: ast.AST) -> str | None:
    """The dotted name `a.b.c` as written; None for other expressions."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join([node.id, *reversed(parts)])


def identifiers_in(node: ast.AST) -> Iterator[str]:
    """The names and attributes in an expression."""
    for part in walk(node):
        if isinstance(part, (ast.Name, ast.Attribute)):
            yield part.id if isinstance(part, ast.Name) else part.attr


def identifiers_and_texts_in(node: ast.AST) -> Iterator[str]:
    """The names, attributes and texts in an expression."""
    yield from identifiers_in(node)
    for part in walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def words_of(names: Iterable[str]) -> set[str]:
    """The words of names, in lower case: "use", "tpu" and "strategy" for `use_TPUStrategy`."""
    return {word.lower() for name in names for word in WORD.findall(name)}


def parts_of(node: ast.AST) -> list[ast.AST]:
    """The child nodes of a node, without operators and contexts.

    Faster than `ast.iter_child_nodes`, which matters when every node is visited.
    """
    kind = node.__class__
    fields = _child_fields.get(kind)
    if fields is None:
        names = (name for name in kind._fields if name not in FIELDS_WITHOUT_NODES)
        fields = _child_fields[kind] = tuple(names)
    children: list[ast.AST] = []
    for name in fields:
        value = getattr(node, name, None)
        if value.__class__ is list:
            if not value:  # as most are
                continue
            children += [child for child in value if isinstance(child, ast.AST)]
        elif isinstance(value, ast.AST):
            children.append(value)
    return children


def own_nodes(node: Function) -> Iterator[ast.AST]:
    """The nodes of a function's body, without nested functions and classes."""
    body: list[ast.AST] = [node.body] if isinstance(node, ast.Lambda) else list(node.body)
    while body:
        child = body.pop()
        if not isinstance(child, NESTED):
            yield child
            body += parts_of(child)


def walk(node: ast.AST) -> list[ast.AST]:
    """A node and all nodes below it, parents before children, without operators and contexts."""
    nodes = [node]
    for part in nodes:  # grows during iteration
        nodes += parts_of(part)
    return nodes


def returns_of(function: Function) -> Iterator[ast.Return]:
    """The return statements of a function, without those of nested functions."""
    pending: list[ast.AST] = [] if isinstance(function, ast.Lambda) else list(function.body)
    for node in pending:  # grows during iteration
        if isinstance(node, ast.Return):
            yield node
        elif not isinstance(node, (ast.expr, *SCOPES)):
            pending += parts_of(node)


def parameters_of(function: Function) -> list[ast.arg]:
    """All parameters of a function, `*args` and `**kwargs` last."""
    arguments = function.args
    parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return parameters + [
        parameter for parameter in (arguments.vararg, arguments.kwarg) if parameter is not None
    ]


def default_of(function: Function, name: str) -> ast.expr | None:
    """The default of a parameter, if it has one."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    for parameter, default in zip(positional, defaults, strict=True):
        if parameter.arg == name:
            return default
    for parameter, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if parameter.arg == name:
            return default
    return None


def argument(call: ast.Call, number: int, name: str) -> ast.expr | None:
    """The argument of a call for a parameter, by position or name."""
    if 0 <= number < len(call.args):
        return call.args[number]
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def argument_of(
    function: Function, call: ast.Call, name: str, is_method: bool = False
) -> ast.expr | None:
    """The argument of a call for a function's parameter; methods are called without `self`."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    parameter_names = [
        parameter.arg for parameter in (*function.args.posonlyargs, *function.args.args)
    ]
    if is_method:
        parameter_names = parameter_names[1:]
    number = parameter_names.index(name) if name in parameter_names else len(call.args)
    positional = call.args[: number + 1]
    if number >= len(call.args) or any(isinstance(arg, ast.Starred) for arg in positional):
        return None
    return call.args[number]


def elements_of(node: ast.expr | None) -> list[ast.expr]:
    """The elements of a list, tuple or dictionary, or the expression itself."""
    if node is None:
        return []
    if isinstance(node, (ast.List, ast.Tuple)):
        return [inner for element in node.elts for inner in elements_of(element)]
    return list(node.values) if isinstance(node, ast.Dict) else [node]


def title(node: Function) -> str:
    return "a lambda" if isinstance(node, ast.Lambda) else f"`{node.name}`"
