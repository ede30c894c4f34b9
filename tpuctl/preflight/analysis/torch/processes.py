"""Which process of several runs code, for PyTorch on a TPU."""

from __future__ import annotations

import ast

from tpuctl.preflight.analysis.program.source import Module
from tpuctl.preflight.analysis.torch.usage import ACCELERATORS
from tpuctl.preflight.analysis.values.host_code import HostCode

XM = "torch_xla.core.xla_model."
ORDINALS = {f"{XM}get_ordinal", f"{XM}get_local_ordinal", "torch.distributed.get_rank"}
ORDINALS |= {"torch_xla.runtime.global_ordinal", "torch_xla.runtime.local_ordinal"}
ORDINALS |= {"torch_xla.runtime.process_index"}
# Functions in which all processes meet, and such methods of Accelerate's object.
COLLECTIVES = {
    *(f"{XM}{name}" for name in ("all_reduce", "all_gather", "all_to_all", "reduce_scatter")),
    *(f"{XM}{name}" for name in ("collective_permute", "collective_broadcast", "rendezvous")),
    *(f"{XM}{name}" for name in ("mesh_reduce", "optimizer_step", "reduce_gradients")),
    f"{XM}broadcast_master_param",
    *(f"torch.distributed.{name}" for name in ("barrier", "all_reduce", "all_gather", "reduce")),
    *(f"torch.distributed.{name}" for name in ("broadcast", "gather", "all_gather_object")),
}
METHODS = {"wait_for_everyone", "gather", "gather_for_metrics", "reduce", "save_state"}
FIRST = {"is_main_process", "is_local_main_process"}


def is_accelerator(host: HostCode, module: Module, node: ast.expr) -> bool:
    """Whether an expression is Accelerate's object, by its constructor, or as a parameter."""
    values = host.assigned_values(module, node)
    names = [module.names.called(value) or "" for value in values if value is not None]
    if any(map(ACCELERATORS.fullmatch, names)):
        return True
    is_parameter = values == [None] or not values
    return is_parameter and getattr(node, "attr", getattr(node, "id", "")) == "accelerator"


def is_collective(host: HostCode, module: Module, call: ast.Call) -> bool:
    """Whether all processes meet in a call."""
    name = module.names.of(call.func)
    if name is not None or not isinstance(call.func, ast.Attribute):
        return name in COLLECTIVES
    return call.func.attr in METHODS and is_accelerator(host, module, call.func.value)


def is_first(host: HostCode, module: Module, node: ast.expr, always: bool = False) -> bool:
    """Whether a condition holds in the first process alone, and there, perhaps, always."""
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
        parts = [is_first(host, module, value, always) for value in node.values]
        return all(parts) if always else any(parts)
    if isinstance(node, ast.Name):
        values = host.assigned_values(module, node)
        value = values[0] if len(values) == 1 else None
        return value is not None and is_first(host, module, value, always)
    if isinstance(node, ast.Call):
        return module.names.of(node.func) == f"{XM}is_master_ordinal"
    if isinstance(node, ast.Attribute):
        return node.attr in FIRST and is_accelerator(host, module, node.value)
    return compares_ordinal(host, module, node, ast.Eq)


def compares_ordinal(
    host: HostCode, module: Module, node: ast.expr, operation: type[ast.cmpop]
) -> bool:
    if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], operation):
        return False
    if len(node.ops) > 1 or getattr(node.comparators[0], "value", None) != 0:
        return False
    values = host.assigned_values(module, node.left) or [node.left]
    return all(value is not None and module.names.called(value) in ORDINALS for value in values)
