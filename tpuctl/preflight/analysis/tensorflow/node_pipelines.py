"""Input pipelines of a TPU node, which run on the node's host.

That machine has neither the files nor the Python process of the machine that runs the script. On
a TPU VM they are the same machine.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.functions import function_of
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import Function, argument, own_nodes
from tpuctl.preflight.analysis.values.host_code import HostCode
from tpuctl.preflight.findings import Target

PIPELINE_METHODS = {
    "map",
    "flat_map",
    "interleave",
    "filter",
    "apply",
    "take_while",
    "scan",
    "reduce",
}
PIPELINE_METHODS |= {"group_by_window", "rejection_resample"}
TRAINS = re.compile(r"fit|GradientTape|\w*TPU\w*")  # names of what uses a TPU


def calls_for_node(project: Project, target: Target) -> list[tuple[Module, ast.Call]]:
    """Calls that may build pipelines on a TPU node; empty for other targets and for scripts that
    only write records."""
    if target.kind != "node" or only_writes(project):
        return []
    if "calls for a node" not in project.cache:
        host = HostCode.of(project)
        project.cache["calls for a node"] = [
            (module, call)
            for module in project
            for call in module.calls
            if not _is_on_script_machine(host, module, call)
        ]
    calls: list[tuple[Module, ast.Call]] = project.cache["calls for a node"]
    return calls


def is_step(call: ast.Call) -> bool:
    """Whether a call passes a function to a pipeline."""
    return isinstance(call.func, ast.Attribute) and call.func.attr in PIPELINE_METHODS


def calls_reached(
    project: Project, module: Module, node: ast.expr
) -> Iterator[tuple[Module, ast.Call]]:
    """The calls in a function and in the project's functions that it calls."""
    first = function_of(project, module, node)
    pending = [first] if first is not None else []
    seen: set[Function] = set()
    while pending:
        where, function = pending.pop()
        if function in seen:
            continue
        seen.add(function)
        for part in own_nodes(function):
            if isinstance(part, ast.Call):
                yield where, part
                definition = function_of(project, where, part.func)
                pending += [definition] if definition is not None else []


def _is_on_script_machine(host: HostCode, module: Module, node: ast.AST) -> bool:
    """Whether `tf.device` places a node on the machine that runs the script."""
    for ancestor in module.ancestors(node):
        for item in ancestor.items if isinstance(ancestor, ast.With) else ():
            device = item.context_expr
            if module.names.called(device) == "tensorflow.device" and isinstance(device, ast.Call):
                values = host.constants(module, argument(device, 0, "device_name"))
                if any("localhost" in name.text for name in values):
                    return True
    return False


def only_writes(project: Project) -> bool:
    """Whether the script only writes records and trains nothing, so it uses no TPU."""
    if "TFRecordWriter" not in project.used_names:
        return False
    return not project.uses_name(TRAINS) and "TPU_NAME" not in project.texts
