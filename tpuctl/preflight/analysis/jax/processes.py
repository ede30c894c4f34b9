"""What host code of several JAX processes has in common: values, and arrays over all devices."""

from __future__ import annotations

import ast
import re
from enum import Enum
from typing import NamedTuple

from tpuctl.preflight.analysis.program.callers import calls_of
from tpuctl.preflight.analysis.program.functions import function_of
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import FUNCTIONS, argument, argument_of, returns_of
from tpuctl.preflight.analysis.values.host_code import HostCode

MAX_DEPTH = 48  # expressions between one and where its value is from
MAX_CALLS = 3  # functions between a conditional and what it decides about
COUNTS = ("jax.process_count", "jax.device_count", "jax.local_device_count")
GENERATORS = ("numpy.random.default_rng", "numpy.random.RandomState")
SEEDS = re.compile(r"(?:numpy\.)?random\.seed|set_seed|seed_everything|set_random_seed")
# Whatever distributes a program over processes, or divides their data.
DISTRIBUTES = re.compile(
    r"\w*(?:[Ss]hard|[Mm]esh|[Pp]artition|replicate|multihost)\w*|pmap|xmap|pjit|psum|pmean"
    r"|all_gather|process_index|process_count|process_id|local_devices|mpi4jax"
)
BUILTINS = {"len", "range", "int", "float", "min", "max", "abs", "enumerate", "zip", "list", "sum"}
ARRAYS = ("numpy.", "jax.numpy.", "jax.random.")
# Whose result does not have the values of their arguments.
VALUELESS = {"zeros_like", "ones_like", "empty_like", "full_like", "shape", "ndim", "size"}


class Sameness(Enum):
    """Whether an expression has the same value in all processes of a job."""

    SAME = "same"
    DIFFERENT = "different"
    UNKNOWN = "unknown"


class GlobalSharding(NamedTuple):
    """A sharding over the devices of all processes."""

    axes: tuple[str, ...]  # of its mesh; empty if unknown
    split: frozenset[str]  # the axes over which it splits arrays

    @property
    def splits_processes(self) -> bool:
        """Whether processes hold different parts: devices are in the order of their processes."""
        return bool(self.axes) and self.axes[0] in self.split


def compare(project: Project, module: Module, node: ast.expr | None) -> Sameness:
    """Whether an expression has the same value in all processes."""
    return _Comparison(project).of(module, node)


class _Comparison:
    def __init__(self, project: Project) -> None:
        self.project, self.host = project, HostCode.of(project)
        self.active: set[ast.AST] = set()
        self.is_seeded = project.uses_name(SEEDS)

    def of(self, module: Module, node: ast.expr | None) -> Sameness:
        if node is None or node in self.active or len(self.active) > MAX_DEPTH:
            return Sameness.UNKNOWN
        self.active.add(node)
        try:
            return self._of(module, node)
        finally:
            self.active.remove(node)

    def _all(self, module: Module, *nodes: ast.expr | None) -> Sameness:
        return _combined(*(self.of(module, node) for node in nodes if node is not None))

    def _of(self, module: Module, node: ast.expr) -> Sameness:
        match node:
            case ast.Constant():
                return Sameness.SAME
            case ast.Name():
                return self._of_name(module, node)
            case ast.Call():
                return self._of_call(module, node)
            case ast.Subscript(value=value, slice=index):
                return self._all(module, value, index)
            case ast.Slice(lower=lower, upper=upper, step=step):
                return self._all(module, lower, upper, step)
            case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Dict(values=parts):
                return self._all(module, *parts)
            case ast.BinOp(left=left, right=right):
                return self._all(module, left, right)
            case ast.Compare(left=left, comparators=others):
                return self._all(module, left, *others)
            case ast.BoolOp(values=values):
                return self._all(module, *values)
            case ast.UnaryOp(operand=operand):
                return self.of(module, operand)
        return Sameness.UNKNOWN

    def _of_name(self, module: Module, node: ast.Name) -> Sameness:
        values = []
        for binding in self.host.bindings(module, node):
            if binding.parameter is not None:
                values.append(self._of_parameter(module, binding.parameter))
            else:
                values.append(self.of(module, binding.value))
            if binding.is_updated:
                return _combined(*values)
        return values[0] if len(set(values)) == 1 else Sameness.UNKNOWN

    def _of_parameter(self, module: Module, parameter: ast.arg) -> Sameness:
        function = module.parents[module.parents[parameter]]
        if not isinstance(function, FUNCTIONS) or module.enclosing_class(function) is not None:
            return Sameness.UNKNOWN
        calls, is_complete = calls_of(self.project, module, function)
        values = {
            self.of(where, argument_of(function, call, parameter.arg)) for where, call in calls
        }
        return values.pop() if is_complete and len(values) == 1 else Sameness.UNKNOWN

    def _of_call(self, module: Module, call: ast.Call) -> Sameness:
        arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
        name = module.names.of(call.func)
        if name == "jax.process_index":
            return Sameness.DIFFERENT
        if name in COUNTS:
            return Sameness.SAME
        if name in GENERATORS:
            return self._all(module, *arguments) if arguments else Sameness.DIFFERENT
        if name is not None and name.startswith("numpy.random."):
            return Sameness.UNKNOWN if self.is_seeded else Sameness.DIFFERENT
        if name is not None and name.startswith(ARRAYS):
            is_known = name.rpartition(".")[2] not in VALUELESS
            return self._all(module, *arguments) if is_known else Sameness.UNKNOWN
        if isinstance(call.func, ast.Name) and call.func.id in BUILTINS:
            return self._all(module, *arguments)
        function = function_of(self.project, module, call.func)
        if function is not None:
            returned = [statement.value for statement in returns_of(function[1])]
            return self.of(function[0], returned[0]) if len(returned) == 1 else Sameness.UNKNOWN
        if name is None and isinstance(call.func, ast.Attribute):
            owner = self.of(module, call.func.value)
            is_unknown = owner is Sameness.UNKNOWN
            return owner if is_unknown else _combined(owner, self._all(module, *arguments))
        return Sameness.UNKNOWN


def _combined(*values: Sameness) -> Sameness:
    for value in (Sameness.DIFFERENT, Sameness.UNKNOWN):
        if value in values:
            return value
    return Sameness.SAME


def is_on_one_process(project: Project, module: Module, node: ast.AST) -> bool:
    """Whether only one process runs a node, by a conditional on the index of the process."""
    return _is_on_one_process(project, module, node, MAX_CALLS)


def _is_on_one_process(project: Project, module: Module, node: ast.AST, depth: int) -> bool:
    below = node
    for ancestor in module.ancestors(node):
        if isinstance(ancestor, ast.If):
            branch = _branch_of_one(project, module, ancestor.test)
            if branch is not None and below in getattr(ancestor, branch):
                return True
        block = getattr(ancestor, "body", None)
        if isinstance(block, list) and below in block:
            for part in block[: block.index(below)]:
                # `if jax.process_index() != 0: return`
                if (
                    isinstance(part, ast.If)
                    and isinstance(part.body[-1], (ast.Return, ast.Continue))
                    and _branch_of_one(project, module, part.test) == "orelse"
                ):
                    return True
        if isinstance(ancestor, FUNCTIONS):
            calls, is_complete = calls_of(project, module, ancestor)
            return bool(depth and calls and is_complete) and all(
                _is_on_one_process(project, where, call, depth - 1) for where, call in calls
            )
        below = ancestor
    return False


def _branch_of_one(project: Project, module: Module, test: ast.expr) -> str | None:
    """The branch of a conditional that one process runs, "body" or "orelse", if there is one."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        branches = {_branch_of_one(project, module, part) for part in test.values}
        return "body" if "body" in branches else None
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _branch_of_one(project, module, test.operand)
        return None if inner is None else "orelse" if inner == "body" else "body"
    if isinstance(test, ast.Call):
        function = function_of(project, module, test.func)
        if function is not None:
            values = [part.value for part in returns_of(function[1]) if part.value is not None]
            return _branch_of_one(project, function[0], values[0]) if len(values) == 1 else None
    where, value = resolved(project, module, test)
    if isinstance(value, ast.Compare) and len(value.ops) == 1:
        number = value.comparators[0]
        is_index = _is_process_index(project, where, value.left)
        if is_index and isinstance(number, ast.Constant) and number.value == 0:
            kinds = {ast.Eq: "body", ast.NotEq: "orelse", ast.Gt: "orelse"}
            return kinds.get(type(value.ops[0]))
    return "orelse" if _is_process_index(project, where, value) else None


def _is_process_index(project: Project, module: Module, node: ast.expr) -> bool:
    where, value = resolved(project, module, node)
    return where.names.called(value) in ("jax.process_index", "jax.host_id")


def is_numpy(project: Project, module: Module, node: ast.expr) -> bool:
    """Whether an expression is certainly an array of NumPy."""
    module, node = resolved(project, module, node)
    if isinstance(node, ast.Subscript):
        return is_numpy(project, module, node.value)
    if not isinstance(node, ast.Call):
        return False
    name = module.names.of(node.func)
    if name is not None:
        return name.startswith("numpy.") and name not in GENERATORS
    if not isinstance(node.func, ast.Attribute):
        return False
    where, owner = resolved(project, module, node.func.value)
    is_drawn = isinstance(owner, ast.Call) and where.names.of(owner.func) in GENERATORS
    return is_drawn or is_numpy(project, where, owner)


def global_sharding(
    project: Project, module: Module, node: ast.expr | None
) -> GlobalSharding | None:
    """The sharding that an expression certainly is, if it is over the devices of all processes."""
    if node is None:
        return None
    module, node = resolved(project, module, node)
    if not isinstance(node, ast.Call) or not _is_named(module, node.func, "NamedSharding"):
        return None
    axes = _mesh_axes(project, module, argument(node, 0, "mesh"))
    spec = argument(node, 1, "spec")
    if axes is None or spec is None:
        return None
    where, value = resolved(project, module, spec)
    if not isinstance(value, ast.Call) or not _is_named(where, value.func, "PartitionSpec", "P"):
        return GlobalSharding(axes, frozenset())
    return GlobalSharding(axes, frozenset(_texts(*value.args)))


def _mesh_axes(project: Project, module: Module, node: ast.expr | None) -> tuple[str, ...] | None:
    """The names of the axes of a mesh of all devices; None for other meshes."""
    if node is None:
        return None
    module, node = resolved(project, module, node)
    if not isinstance(node, ast.Call):
        return None
    if _is_named(module, node.func, "make_mesh"):
        is_global = argument(node, 3, "devices") is None
        return tuple(_texts(argument(node, 1, "axis_names"))) if is_global else None
    devices = argument(node, 0, "devices")
    if not _is_named(module, node.func, "Mesh") or devices is None:
        return None
    is_global = _holds_all_devices(project, module, devices)
    return tuple(_texts(argument(node, 1, "axis_names"))) if is_global else None


def _holds_all_devices(project: Project, module: Module, node: ast.expr) -> bool:
    module, node = resolved(project, module, node)
    if isinstance(node, ast.Call):
        name = module.names.of(node.func) or ""
        if name == "jax.devices":
            return not node.args
        if name.endswith("mesh_utils.create_device_mesh"):
            devices = argument(node, 1, "devices")
            return devices is None or _holds_all_devices(project, module, devices)
        if name in ("numpy.array", "numpy.asarray", "numpy.reshape"):
            return _holds_all_devices(project, module, node.args[0])
        if isinstance(node.func, ast.Attribute) and node.func.attr == "reshape":
            return _holds_all_devices(project, module, node.func.value)
    return False


def _is_named(module: Module, node: ast.expr, *names: str) -> bool:
    name = module.names.of(node) or ""
    return name in {f"jax{part}.{last}" for part in ("", ".sharding") for last in names}


def _texts(*nodes: ast.expr | None) -> list[str]:
    """The texts that expressions contain."""
    return [
        part.value
        for node in nodes if node is not None
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    ]  # fmt: skip


def resolved(project: Project, module: Module, node: ast.expr) -> tuple[Module, ast.expr]:
    """The expression whose value a name has, if there is just one; the expression itself if not."""
    host = HostCode.of(project)
    for _ in range(MAX_DEPTH):
        is_attribute = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        if not isinstance(node, ast.Name) and not is_attribute:
            break
        values = host.assigned_values(module, node)
        if len(values) != 1 or values[0] is None:
            break
        node = values[0]
    return module, node
