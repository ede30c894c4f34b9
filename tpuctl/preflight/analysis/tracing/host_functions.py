"""Which calls pass functions to code that runs them on the host, or exports them for serving."""

from __future__ import annotations

import ast

from tpuctl.preflight.analysis.program.functions import function_of
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import dotted
from tpuctl.preflight.analysis.values.abstract_values import Kind
from tpuctl.preflight.analysis.values.host_code import HostCode

# Dataset methods that run functions on the host.
DATASET_METHODS = {"map", "filter", "flat_map", "interleave", "reduce", "scan", "apply", "batch"}
DATASET_METHODS |= {"group_by_window", "bucket_by_sequence_length", "take_while"}
# Methods that no other objects have.
HOST_METHODS = {
    "from_generator",
    "distribute_datasets_from_function",
    "experimental_distribute_datasets_from_function",
}
HOST_FUNCTIONS = {"tensorflow.py_function", "tensorflow.numpy_function", "tensorflow.py_func"}
HOST_FUNCTIONS |= {"tensorflow.compat.v1.py_func", "tensorflow.compat.v1.tpu.outside_compilation"}
# What saves or converts functions without running them.
EXPORTERS = (
    *("saved_model.save", "models.save_model", "saving.save_model", "add_endpoint"),
    *("TFLiteConverter.from_concrete_functions", "TFLiteConverter.from_keras_model"),
)
DOTTED_EXPORTERS = tuple(f".{name}" for name in EXPORTERS)
DATA = ("tensorflow.data.", "tensorflow_datasets.")
DATA_PACKAGES = ("tensorflow", "tensorflow_datasets")


def is_host(project: Project, module: Module, call: ast.Call) -> bool:
    """Whether a call passes functions to `tf.data` or to Python on the host."""
    name = module.names.of(call.func)
    if name in HOST_FUNCTIONS:
        return True
    if not isinstance(call.func, ast.Attribute):
        return False
    method, receiver = call.func.attr, call.func.value
    if name is not None:
        return name.startswith(DATA) and method in HOST_METHODS | DATASET_METHODS
    if method not in DATASET_METHODS:
        return method in HOST_METHODS
    passes_functions = any(
        (module.names.called(part) or "").startswith(DATA)
        or function_of(project, module, part) is not None
        for part in (*call.args, *(keyword.value for keyword in call.keywords))
    )
    if not passes_functions and project.packages.isdisjoint(DATA_PACKAGES):
        return False
    value = HostCode.of(project).evaluate(module, receiver)
    if value.kind is Kind.OBJECT and value.name:
        return value.name.startswith(DATA)
    if value.owner is not None or value.kind is Kind.STATIC:
        return False
    return passes_functions


def is_exporting(module: Module, call: ast.Call, node: ast.AST) -> bool:
    """Whether a call only exports what it receives as this argument, such as `signatures`."""
    name = module.names.of(call.func) or dotted(call.func) or ""
    return getattr(node, "arg", "") == "signatures" or f".{name}".endswith(DOTTED_EXPORTERS)
