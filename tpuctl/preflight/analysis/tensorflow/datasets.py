"""Datasets: the number of their examples, and where their batches are used."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.functions import function_of
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import Function, argument
from tpuctl.preflight.analysis.source_findings import method_node
from tpuctl.preflight.analysis.values.host_code import HostCode

# Methods that keep the number of examples.
KEEPS_LENGTH = {
    "shuffle",
    "map",
    "cache",
    "prefetch",
    "with_options",
    "enumerate",
    "filter_by_shard",
}
# Functions that use a batch on the host.
HOST_LIBRARIES = ("numpy.", "tensorflow.io.", "tensorflow.train.", "tensorflow.summary.")
HOST_BUILTINS = {"print", "len", "enumerate", "str", "repr", "list", "tuple", "zip"}
ON_HOST = {"as_numpy_iterator", "unbatch", "save", "cardinality"}


def divides_evenly(
    host: HostCode, module: Module, node: ast.Call, calls_before: list[ast.Call]
) -> bool:
    """Whether the number of examples is known and a multiple of the batch size."""
    size = host.number(module, argument(node, 0, "batch_size"))
    if not size:
        return False
    factor = 1
    for call in calls_before:
        last = getattr(call.func, "attr", "")
        if last == "repeat":
            factor *= host.number(module, argument(call, 0, "count")) or 1
        elif last in ("take",):
            count = host.number(module, argument(call, 0, "count"))
            return count is not None and count * factor % size == 0
        elif last == "range" and len(call.args) == 1:
            count = host.number(module, call.args[0])
            return count is not None and count * factor % size == 0
        elif last in ("from_tensor_slices", "from_tensors"):
            count = _length(host, module, call.args[0]) if call.args else None
            return count is not None and count * factor % size == 0
        elif last not in KEEPS_LENGTH:
            return False
    return False


def _length(host: HostCode, module: Module, node: ast.expr, depth: int = 0) -> int | None:
    """The first dimension of an array or of a structure of arrays."""
    if isinstance(node, (ast.Tuple, ast.Dict)) and depth < 5:
        parts = node.elts if isinstance(node, ast.Tuple) else node.values
        lengths = (_length(host, module, part, depth + 1) for part in parts)
        return next((length for length in lengths if length is not None), None)
    if isinstance(node, ast.List):
        return len(node.elts)
    if isinstance(node, ast.Call):
        return _array_length(host, module, node, depth)
    values = host.assigned_values(module, node)
    if len(values) != 1 or values[0] is None or depth > 5:
        return None
    return _length(host, module, values[0], depth + 1)


def _array_length(host: HostCode, module: Module, node: ast.Call, depth: int) -> int | None:
    last = getattr(node.func, "attr", "")
    if last in ("astype", "reshape") and isinstance(node.func, ast.Attribute) and depth < 5:
        return _length(host, module, node.func.value, depth + 1) if last == "astype" else None
    name = module.names.of(node.func) or ""
    if not name.startswith(("numpy.", "tensorflow.")):
        return None
    if last in ("rand", "randn"):
        return host.number(module, node.args[0]) if node.args else None
    if last in ("arange", "range"):
        return host.number(module, node.args[0]) if len(node.args) == 1 else None
    positions = {"randint": 2, "standard_normal": 0, "random": 0, "zeros": 0, "ones": 0}
    positions |= {"normal": 0 if name.startswith("tensorflow") else 2, "full": 0, "fill": 0}
    positions |= {"uniform": 0 if name.startswith("tensorflow") else 2}
    if last not in positions:
        return None
    shape = argument(node, positions[last], "size") or argument(node, positions[last], "shape")
    if isinstance(shape, (ast.Tuple, ast.List)):
        return host.number(module, shape.elts[0]) if shape.elts else None
    return host.number(module, shape)


def is_endless(node: ast.Call) -> bool:
    """Whether a call repeats a dataset without end."""
    if not isinstance(node.func, ast.Attribute) or node.func.attr != "repeat":
        return False
    count = argument(node, 0, "count")
    if count is None:
        return True
    if isinstance(count, ast.UnaryOp) and isinstance(count.op, ast.USub):
        return True
    return isinstance(count, ast.Constant) and count.value is None


# Batches ------------------------------------------------------------------------------------


def stays_on_host(project: Project, module: Module, node: ast.Call) -> bool:
    """Whether batches are unbatched again or read only by Python on the host."""
    return _is_unbatched(project, module, node) or _is_read_on_host(module, node)


def _is_unbatched(project: Project, module: Module, node: ast.Call) -> bool:
    around = module.enclosing_function(node)
    outer = None if around is None else module.enclosing_function(around)
    names = _names_of(module, node)
    for where, call in _unbatches(project):
        if where is module and _position(call) > _position(node):
            if outer is not None and outer in where.ancestors(call):
                return True  # the enclosing function unbatches the result
            root = _chain_root(call)
            if isinstance(root, ast.Name) and root.id in names:
                return where.enclosing_function(call) is around
        if around is not None and _returns(module, around, node):
            root = _chain_root(call)
            definition = (
                function_of(project, where, root.func) if isinstance(root, ast.Call) else None
            )
            if definition is not None and definition[1] is around:
                return True
    return False


def _unbatches(project: Project) -> list[tuple[Module, ast.Call]]:
    if "unbatches" not in project.cache:
        project.cache["unbatches"] = [
            (module, call)
            for module in project
            for call in module.calls
            if isinstance(call.func, ast.Attribute) and call.func.attr == "unbatch"
        ]
    calls: list[tuple[Module, ast.Call]] = project.cache["unbatches"]
    return calls


def _is_read_on_host(module: Module, node: ast.Call) -> bool:
    """Whether only Python loops that do not pass the batches to a step read them."""
    names = _names_of(module, node)
    ends = [_chain_end(module, node)]
    around = module.enclosing_function(node) or module.tree
    if isinstance(module.parents.get(ends[0]), ast.Assign):
        if len(names) != 1:
            return False
        ends = [
            _chain_end(module, part)
            for part in ast.walk(around)
            if isinstance(part, ast.Name) and part.id in names and isinstance(part.ctx, ast.Load)
        ]
    return bool(ends) and all(_is_host_end(module, end) for end in ends)


def _is_host_end(module: Module, node: ast.AST) -> bool:
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ON_HOST:
        return True
    parent = module.parents.get(node)
    while isinstance(parent, ast.Call) and getattr(parent.func, "id", "") in HOST_BUILTINS:
        node, parent = parent, module.parents.get(parent)
    if not isinstance(parent, ast.For) or parent.iter is not node:
        return False
    names = {part.id for part in ast.walk(parent.target) if isinstance(part, ast.Name)}
    return not any(
        _passes_to_step(module, call, names)
        for statement in parent.body
        for call in _calls(statement)
    )


def _passes_to_step(module: Module, call: ast.Call, names: set[str]) -> bool:
    """Whether a call passes one of the names to code that may run on a TPU."""
    arguments = [*call.args, *(key.value for key in call.keywords)]
    if not any(
        isinstance(part, ast.Name) and part.id in names
        for value in arguments
        for part in ast.walk(value)
    ):
        return False
    name = module.names.of(call.func)
    if name is None:
        return getattr(call.func, "id", "") not in HOST_BUILTINS
    return not name.startswith(HOST_LIBRARIES)


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    return (part for part in ast.walk(node) if isinstance(part, ast.Call))


def _chain_end(module: Module, node: ast.AST) -> ast.AST:
    """The last call of the method chain that starts with a node."""
    while True:
        parent = module.parents.get(node)
        call = module.parents.get(parent) if isinstance(parent, ast.Attribute) else None
        if not isinstance(call, ast.Call) or call.func is not parent:
            return node
        node = call
        if getattr(call.func, "attr", "") in ON_HOST:
            return node


def _chain_root(call: ast.Call) -> ast.AST:
    """The start of the method chain that ends with a call."""
    node: ast.AST = call
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node = node.func.value
    return node


def _names_of(module: Module, node: ast.Call) -> set[str]:
    parent = module.parents.get(_chain_end(module, node))
    targets = parent.targets if isinstance(parent, ast.Assign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _returns(module: Module, function: Function, node: ast.Call) -> bool:
    parent = module.parents.get(_chain_end(module, node))
    return isinstance(parent, ast.Return) and module.enclosing_function(parent) is function


def _position(call: ast.Call) -> tuple[int, int]:
    part = method_node(call)
    return getattr(part, "lineno", 0), getattr(part, "col_offset", 0)
