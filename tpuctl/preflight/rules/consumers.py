"""What becomes of the batches of a data set: which of them no TPU ever sees."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.functions import function_of
from tpuctl.preflight.analysis.source import Module, Project
from tpuctl.preflight.analysis.syntax import Function
from tpuctl.preflight.rules.places import named_part

__all__ = ["stays_on_host"]

# What takes a batch and leaves it on the host.
LIBRARIES = ("numpy.", "tensorflow.io.", "tensorflow.train.", "tensorflow.summary.")
BUILTINS = {"print", "len", "enumerate", "str", "repr", "list", "tuple", "zip"}
ON_HOST = {"as_numpy_iterator", "unbatch", "save", "cardinality"}


def stays_on_host(project: Project, module: Module, node: ast.Call) -> bool:
    """Whether batches are taken apart again, or only read by Python."""
    return _is_unbatched(project, module, node) or _is_read(module, node)


def _is_unbatched(project: Project, module: Module, node: ast.Call) -> bool:
    around = module.function_around(node)
    outer = None if around is None else module.function_around(around)
    names = _names_of(module, node)
    for where, call in _unbatches(project):
        if where is module and _place(call) > _place(node):
            if outer is not None and outer in where.around(call):
                return True  # what a function within makes, the one around takes apart
            root = _root(call)
            if isinstance(root, ast.Name) and root.id in names:
                return where.function_around(call) is around
        if around is not None and _returns(module, around, node):
            root = _root(call)
            made = function_of(project, where, root.func) if isinstance(root, ast.Call) else None
            if made is not None and made[1] is around:
                return True
    return False


def _unbatches(project: Project) -> list[tuple[Module, ast.Call]]:
    if "unbatches" not in project.known:
        project.known["unbatches"] = [
            (module, call)
            for module in project
            for call in module.calls
            if isinstance(call.func, ast.Attribute) and call.func.attr == "unbatch"
        ]
    found: list[tuple[Module, ast.Call]] = project.known["unbatches"]
    return found


def _is_read(module: Module, node: ast.Call) -> bool:
    """Whether all who take the batches are loops of Python's that hand them to no step."""
    names = _names_of(module, node)
    ends = [_end(module, node)]
    around = module.function_around(node) or module.tree
    if isinstance(module.parents.get(ends[0]), ast.Assign):
        if len(names) != 1:
            return False
        ends = [
            _end(module, part)
            for part in ast.walk(around)
            if isinstance(part, ast.Name) and part.id in names and isinstance(part.ctx, ast.Load)
        ]
    return bool(ends) and all(_is_host_end(module, one) for one in ends)


def _is_host_end(module: Module, node: ast.AST) -> bool:
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ON_HOST:
        return True
    parent = module.parents.get(node)
    while isinstance(parent, ast.Call) and getattr(parent.func, "id", "") in BUILTINS:
        node, parent = parent, module.parents.get(parent)
    if not isinstance(parent, ast.For) or parent.iter is not node:
        return False
    taken = {one.id for one in ast.walk(parent.target) if isinstance(one, ast.Name)}
    return not any(_hands_on(module, call, taken) for one in parent.body for call in _calls(one))


def _hands_on(module: Module, call: ast.Call, taken: set[str]) -> bool:
    """Whether a call takes one of the names to where a TPU may be."""
    given = [*call.args, *(key.value for key in call.keywords)]
    if not any(
        isinstance(part, ast.Name) and part.id in taken for one in given for part in ast.walk(one)
    ):
        return False
    name = module.names.of(call.func)
    if name is None:
        return getattr(call.func, "id", "") not in BUILTINS
    return not name.startswith(LIBRARIES)


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    return (one for one in ast.walk(node) if isinstance(one, ast.Call))


def _end(module: Module, node: ast.AST) -> ast.AST:
    """The last call of the chain of methods that one begins."""
    while True:
        parent = module.parents.get(node)
        call = module.parents.get(parent) if isinstance(parent, ast.Attribute) else None
        if not isinstance(call, ast.Call) or call.func is not parent:
            return node
        node = call
        if getattr(call.func, "attr", "") in ON_HOST:
            return node


def _root(call: ast.Call) -> ast.AST:
    """What the chain of methods begins with that ends in a call."""
    node: ast.AST = call
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node = node.func.value
    return node


def _names_of(module: Module, node: ast.Call) -> set[str]:
    parent = module.parents.get(_end(module, node))
    targets = parent.targets if isinstance(parent, ast.Assign) else []
    return {one.id for one in targets if isinstance(one, ast.Name)}


def _returns(module: Module, function: Function, node: ast.Call) -> bool:
    parent = module.parents.get(_end(module, node))
    return isinstance(parent, ast.Return) and module.function_around(parent) is function


def _place(call: ast.Call) -> tuple[int, int]:
    part = named_part(call)
    return getattr(part, "lineno", 0), getattr(part, "col_offset", 0)
