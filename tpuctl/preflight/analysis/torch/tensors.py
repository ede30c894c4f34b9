"""Which expressions of a step are certainly tensors on the device."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from tpuctl.preflight.analysis.program.functions import class_of, library_bases
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import argument, dotted
from tpuctl.preflight.analysis.torch.loops import MODULES, step_scopes, training_loops
from tpuctl.preflight.analysis.values.host_code import HostCode

# Methods and attributes of tensors that are no tensors on the device.
HOST_METHODS = {"item", "tolist", "cpu", "numpy", "size", "dim", "numel", "nelement", "stride"}
HOST_METHODS |= {"element_size", "data_ptr", "is_contiguous", "type", "get_device", "backward"}
HOST_METHODS |= {"is_floating_point", "keys", "equal", "allclose", "format"}
METADATA = {"shape", "dtype", "device", "ndim", "requires_grad", "is_cuda", "layout", "grad_fn"}
METADATA |= {"itemsize", "nbytes", "is_leaf", "names"}
FACTORIES = {"zeros", "ones", "empty", "full", "rand", "randn", "randint", "arange", "tensor"}
MODEL_METHODS = {"parameters", "named_parameters", "state_dict", "load_state_dict"}
GATHERS = {"gather", "gather_for_metrics", "reduce", "pad_across_processes"}  # of Accelerate
XLA_DEVICES = {"torch_xla.device", "torch_xla.core.xla_model.xla_device"}
NO_TENSORS = ("torch.is_", "torch.equal", "torch.allclose", "torch.save", "torch.numel")


class Tensors:
    """The tensors of a project; create with `of`."""

    def __init__(self, project: Project) -> None:
        self.project, self.host = project, HostCode.of(project)
        self._active: set[ast.AST] = set()
        self._known: dict[ast.AST, bool] = {}
        self._models = {
            (module, dotted(call.func.value))
            for module in project
            for call in module.calls
            if isinstance(call.func, ast.Attribute) and call.func.attr in MODEL_METHODS
        }
        # The second parameter of a trainer's `compute_loss` is the model.
        self._models |= {
            (module, scope.args.args[1].arg)
            for module, scope in step_scopes(project)
            if getattr(scope, "name", "") == "compute_loss" and isinstance(scope, ast.FunctionDef)
            and len(scope.args.args) > 1
        }  # fmt: skip
        self._losses = {
            (loop.module, loop.module.enclosing_function(loop.loop), loop.loss)
            for loop in training_loops(project)
            if loop.loss
        }

    @classmethod
    def of(cls, project: Project) -> Tensors:
        """The instance of a project, shared by all rules."""
        tensors = project.cache.get(cls)
        if not isinstance(tensors, Tensors):
            tensors = project.cache[cls] = cls(project)
        return tensors

    def holds(self, module: Module, node: ast.AST | None) -> bool:
        """Whether an expression is certainly a tensor, or a structure of tensors."""
        if node is None:
            return False
        if node not in self._known:
            self._known[node] = bool(self._is_tensor(module, node))
        return self._known[node]

    def _is_tensor(self, module: Module, node: ast.AST) -> bool | None:
        """None if it does not matter, as for numbers to which tensors are added."""
        if node in self._active:
            return None
        self._active.add(node)
        try:
            match node:
                case ast.Constant():
                    return None
                case ast.Name():
                    return self._is_tensor_name(module, node)
                case ast.Call():
                    return self._is_tensor_call(module, node)
                case ast.Attribute(value=value, attr=attribute):
                    if attribute in METADATA or module.names.of(node) is not None:
                        return False
                    return self._is_tensor(module, value)
                case (
                    ast.Subscript(value=value)
                    | ast.NamedExpr(value=value)
                    | ast.UnaryOp(op=ast.USub() | ast.Invert(), operand=value)
                    | ast.DictComp(value=value)
                ):
                    return self._is_tensor(module, value)
                case ast.BinOp(left=left, right=right):
                    return self._any(module, (left, right))
                case ast.Compare(left=left, ops=operations, comparators=others):
                    if any(
                        isinstance(part, (ast.Is, ast.IsNot, ast.In, ast.NotIn))
                        for part in operations
                    ):
                        return False
                    return self._any(module, (left, *others))
            return False
        finally:
            self._active.remove(node)

    def _any(self, module: Module, nodes: Iterable[ast.AST]) -> bool | None:
        values = [self._is_tensor(module, node) for node in nodes]
        return True if True in values else None if None in values else False

    def _is_tensor_name(self, module: Module, node: ast.Name) -> bool | None:
        if (module, module.enclosing_function(node), node.id) in self._losses:
            return True
        if self._is_model(module, node):
            return False
        bindings = self.host.bindings(module, node)
        values = [
            None if binding.value is None else self._is_tensor(module, binding.value)
            for binding in bindings
        ]
        if any(binding.definition is not None for binding in bindings):
            return False
        certain = [value for value in values if value is not None]
        return all(certain) if certain else None

    def _is_tensor_call(self, module: Module, call: ast.Call) -> bool | None:
        name, function = module.names.of(call.func), call.func
        if name is not None:
            last = name.rpartition(".")[2]
            if not name.startswith(("torch.", "torch_xla.core.")) or name.startswith(NO_TENSORS):
                return False
            if last in FACTORIES:
                device = argument(call, -1, "device")
                return device is not None and not _is_cpu(device)
            if not last[0].islower() or last == "mesh_reduce":
                return False
            return self._any(module, call.args)
        if self._is_model(module, function) or self._is_module(module, function):
            return True
        if not isinstance(function, ast.Attribute) or function.attr in HOST_METHODS:
            return False
        if self._is_model(module, function.value) or self._is_module(module, function.value):
            return False
        if function.attr == "to":
            return self._is_moved(module, call)
        if function.attr in GATHERS and call.args:
            return self._is_tensor(module, call.args[0])
        return self._is_tensor(module, function.value)

    def _is_moved(self, module: Module, call: ast.Call) -> bool | None:
        """Whether the result of `x.to(…)` is on the device."""
        device = argument(call, 0, "device")
        if device is not None and _is_cpu(device):
            return False
        if isinstance(device, ast.Name):
            values = self.host.assigned_values(module, device)
            if any(
                module.names.called(value) in XLA_DEVICES for value in values if value is not None
            ):
                return not isinstance(call.func, ast.Attribute) or not self._is_constructed(
                    module, call.func.value
                )
        assert isinstance(call.func, ast.Attribute)
        return self._is_tensor(module, call.func.value)

    def _is_model(self, module: Module, node: ast.AST) -> bool:
        """Whether the project uses an expression as a model, whose parameters it asks for."""
        written = dotted(node)
        return written is not None and (module, written) in self._models

    def _is_module(self, module: Module, node: ast.AST) -> bool:
        """Whether an expression is a module of PyTorch, such as a loss function or a layer."""
        values = self.host.assigned_values(module, node)
        return bool(values) and all(
            value is not None and self._is_constructed(module, value) for value in values
        )

    def _is_constructed(self, module: Module, node: ast.expr) -> bool:
        """Whether an expression creates a module of PyTorch, perhaps on a device."""
        while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if module.names.of(node.func) is not None or node.func.attr not in ("to", "train"):
                break
            node = node.func.value
        if not isinstance(node, ast.Call):
            return False
        name = module.names.of(node.func) or ""
        if name.startswith("torch.nn.") and name.rpartition(".")[2][0].isupper():
            return True
        owner = class_of(self.project, module, node.func)
        return owner is not None and any(
            base.endswith(MODULES) for base in library_bases(self.project, *owner)
        )


def _is_cpu(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == "cpu"
