"""TPU413 gpu-left-over."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.control_flow import is_in_branch
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import argument
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.tensorflow.strategy_scopes import tpu_strategies
from tpuctl.preflight.analysis.values.host_code import HostCode
from tpuctl.preflight.findings import Finding, Rule, Severity, Target
from tpuctl.preflight.rules._common import CONNECT

RULE = Rule(
    code="TPU413",
    name="gpu-left-over",
    severity=Severity.risk,
    summary="TensorFlow script asks for a GPU, which a TPU VM lacks",
    rationale=(
        'The list of GPUs is empty on a TPU VM, so that `list_physical_devices("GPU")[0]` raises '
        "an IndexError. `MirroredStrategy` finds no GPU there and trains on the CPU, and "
        '`tf.device("/GPU:0")` places operations on the host or fails. Conditional code, such as '
        "`if gpus:`, is not reported."
    ),
    bad="""\
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
""",
    good=CONNECT,
)

LISTS = re.compile(r"tensorflow\.config\.(?:experimental\.)?list_(?:physical|logical)_devices")
MIRRORED = re.compile(r"tensorflow\.distribute\.(?:experimental\.)?(?:MultiWorker)?Mirrored\w*")
ONE_DEVICE = "tensorflow.distribute.OneDeviceStrategy"
GPU = re.compile(r"(?:.*/)?(?:device:)?gpu(?::\d+)?", re.IGNORECASE)


def find(project: Project, target: Target) -> Iterator[Finding]:
    host, has_strategy = HostCode.of(project), bool(tpu_strategies(project))
    for module in project:
        for node in module.of_types(ast.Subscript) if module.matches(LISTS) else ():
            if _is_first_gpu(host, module, node) and not is_in_branch(module, node, None):
                message = f"{quoted(module, node)} raises an IndexError: a TPU VM has no GPU"
                severity = Severity.error
                if module.enclosing_function(node) is not None:
                    severity, message = Severity.risk, f"{message}; an error if it runs"
                yield finding_at(RULE, module, node, message, "Remove it.", severity=severity)
        for call in module.calls:
            message, severity = _use_of_gpu(module, call, has_strategy), Severity.risk
            if message and not is_in_branch(module, call, None):
                hint = "Leave it out: operations of tf.functions in strategy.run are on the TPU."
                if "tf.device" not in message:
                    severity = Severity.cost
                    hint = "Use tf.distribute.TPUStrategy."
                yield finding_at(RULE, module, call, message, hint, severity=severity)


def _is_first_gpu(host: HostCode, module: Module, node: ast.Subscript) -> bool:
    """Whether an expression is an item of the list of GPUs."""
    values = [node.value] if isinstance(node.value, ast.Call) else []
    listed = values or host.assigned_values(module, node.value)
    return (
        type(getattr(node.slice, "value", None)) is int
        and bool(listed)
        and all(
            isinstance(value, ast.Call)
            and LISTS.fullmatch(module.names.of(value.func) or "") is not None
            and getattr(argument(value, 0, "device_type"), "value", None) == "GPU"
            for value in listed
        )
    )


def _use_of_gpu(module: Module, call: ast.Call, has_strategy: bool) -> str:
    name = module.names.of(call.func) or ""
    device = getattr(argument(call, 0, "device"), "value", None)
    is_gpu = isinstance(device, str) and GPU.fullmatch(device) is not None
    if name == "tensorflow.device" and is_gpu:
        return f"`tf.device` asks for {device}, which a TPU VM lacks"
    is_one = name == ONE_DEVICE and is_gpu
    if not has_strategy and (is_one or MIRRORED.fullmatch(name)):
        return f"{quoted(module, call)} does not use the TPU: it trains on the CPU"
    return ""
