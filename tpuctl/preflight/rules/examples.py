"""How many examples a data set has, where its making says so."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.source import Module
from tpuctl.preflight.analysis.syntax import argument

__all__ = ["assigned", "divides"]

KEEPS = {"shuffle", "map", "cache", "prefetch", "with_options", "enumerate", "filter_by_shard"}


def divides(module: Module, node: ast.Call, before: list[ast.Call]) -> bool:
    """Whether the number of examples is known, and divides evenly."""
    size = _number(module, argument(node, 0, "batch_size"))
    if not size:
        return False
    factor = 1
    for one in before:
        last = getattr(one.func, "attr", "")
        if last == "repeat":
            factor *= _number(module, argument(one, 0, "count")) or 1
        elif last in ("take",):
            count = _number(module, argument(one, 0, "count"))
            return count is not None and count * factor % size == 0
        elif last == "range" and len(one.args) == 1:
            count = _number(module, one.args[0])
            return count is not None and count * factor % size == 0
        elif last in ("from_tensor_slices", "from_tensors"):
            count = _length(module, one.args[0]) if one.args else None
            return count is not None and count * factor % size == 0
        elif last not in KEEPS:
            return False
    return False


def _number(module: Module, node: ast.expr | None, depth: int = 0) -> int | None:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        left, right = _number(module, node.left, depth), _number(module, node.right, depth)
        return left * right if left is not None and right is not None else None
    value = _only_value(module, node)
    return None if value is None or depth > 5 else _number(module, value, depth + 1)


def _only_value(module: Module, node: ast.expr | None) -> ast.expr | None:
    """What a name is given, where that is one thing only."""
    if not isinstance(node, ast.Name):
        return None
    for around in (module.function_around(node), module.tree):
        if around is None:
            continue
        found = list(assigned(module, around, node.id, 1 << 30))
        if found:
            return found[0] if len(found) == 1 else None
    return None


def _length(module: Module, node: ast.expr, depth: int = 0) -> int | None:
    """The first dimension of an array or a structure of them."""
    if isinstance(node, (ast.Tuple, ast.Dict)) and depth < 5:
        parts = node.elts if isinstance(node, ast.Tuple) else node.values
        found = (_length(module, part, depth + 1) for part in parts)
        return next((one for one in found if one is not None), None)
    if isinstance(node, ast.List):
        return len(node.elts)
    if isinstance(node, ast.Call):
        return _made_length(module, node, depth)
    value = _only_value(module, node)
    return None if value is None or depth > 5 else _length(module, value, depth + 1)


def _made_length(module: Module, node: ast.Call, depth: int) -> int | None:
    last = getattr(node.func, "attr", "")
    if last in ("astype", "reshape") and isinstance(node.func, ast.Attribute) and depth < 5:
        return _length(module, node.func.value, depth + 1) if last == "astype" else None
    name = module.names.of(node.func) or ""
    if not name.startswith(("numpy.", "tensorflow.")):
        return None
    if last in ("rand", "randn"):
        return _number(module, node.args[0]) if node.args else None
    if last in ("arange", "range"):
        return _number(module, node.args[0]) if len(node.args) == 1 else None
    places = {"randint": 2, "standard_normal": 0, "random": 0, "zeros": 0, "ones": 0}
    places |= {"normal": 0 if name.startswith("tensorflow") else 2, "full": 0, "fill": 0}
    places |= {"uniform": 0 if name.startswith("tensorflow") else 2}
    if last not in places:
        return None
    shape = argument(node, places[last], "size") or argument(node, places[last], "shape")
    if isinstance(shape, (ast.Tuple, ast.List)):
        return _number(module, shape.elts[0]) if shape.elts else None
    return _number(module, shape)


def assigned(module: Module, around: ast.AST, name: str, line: int) -> Iterator[ast.expr]:
    """What a name is given in a function before a line."""
    for node in ast.walk(around):
        if isinstance(node, ast.Assign) and node.lineno <= line:
            for target in node.targets:
                if isinstance(target, ast.Name) and target.id == name:
                    yield node.value
