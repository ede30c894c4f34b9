"""TPU403 tpu-not-initialized."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.functions import function_of
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import argument, dotted
from tpuctl.preflight.analysis.source_findings import finding_at
from tpuctl.preflight.analysis.tensorflow.strategy_scopes import tpu_strategies
from tpuctl.preflight.analysis.values.host_code import HostCode
from tpuctl.preflight.findings import Finding, Rule, Severity, Target
from tpuctl.preflight.rules._common import CONNECT

RULE = Rule(
    code="TPU403",
    name="tpu-not-initialized",
    severity=Severity.error,
    summary="TPU is not connected or initialized before its strategy is created",
    rationale=(
        "`TPUStrategy` does neither. Without `tf.tpu.experimental.initialize_tpu_system` the first "
        "step fails because it finds no TPU system. A TPU node is another machine, whose devices "
        "are available only after `tf.config.experimental_connect_to_cluster`."
    ),
    bad="""\
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver()
strategy = tf.distribute.TPUStrategy(resolver)
""",
    good=CONNECT,
)

INITIALIZE = ("initialize_tpu_system", "TPUClusterResolver.connect")
CONNECTS = ("connect_to_cluster", "experimental_connect_to_host", "TPUClusterResolver.connect")


def find(project: Project, target: Target) -> Iterator[Finding]:
    strategies = tpu_strategies(project)
    hint = "Before it, call\n    tf.tpu.experimental.initialize_tpu_system(resolver)"
    if not (strategies or target.kind == "node") or _lists_devices(project):
        return
    starts = _calls(project, INITIALIZE)
    for module, call in strategies:
        if not starts and _has_unknown_resolver(project, module, call):
            continue
        later = [
            start for where, start in starts if where is module and _is_after(module, start, call)
        ]
        if not starts or len(later) == len(starts):
            text = f"`{dotted(call.func)}` is created before the TPU is initialized"
            if not starts:
                text = f"`{dotted(call.func)}` is created for a TPU that is never initialized"
            yield finding_at(RULE, module, call, text, hint)
    if target.kind != "node" or _calls(project, CONNECTS) or (strategies and not starts):
        return
    for module, call in _calls(project, ("TPUClusterResolver",)):
        text = "the script never connects to the TPU node that it resolves"
        hint = "After it, call\n    tf.config.experimental_connect_to_cluster(resolver)"
        yield finding_at(RULE, module, call, text, hint)


def _has_unknown_resolver(project: Project, module: Module, call: ast.Call) -> bool:
    """Whether the strategy's resolver comes from code that is not analyzed."""
    node = argument(call, 0, "tpu_cluster_resolver")
    if node is None or isinstance(node, ast.Constant):
        return False
    values = (
        [node] if isinstance(node, ast.Call) else HostCode.of(project).assigned_values(module, node)
    )
    for value in values:
        name = module.names.called(value) if value is not None else None
        is_own = (
            isinstance(value, ast.Call) and function_of(project, module, value.func) is not None
        )
        if is_own or (name or "").startswith("tensorflow."):
            return False
    return True


def _lists_devices(project: Project) -> bool:
    """Whether the script lists TPU devices, so it expects them to be initialized elsewhere."""
    return any(
        any(isinstance(part, ast.Constant) and part.value == "TPU" for part in call.args)
        for _, call in _calls(project, ("list_logical_devices",))
    )


def _calls(project: Project, endings: tuple[str, ...]) -> list[tuple[Module, ast.Call]]:
    """The calls of functions whose qualified name has one of the endings."""
    return [
        (module, call)
        for module in project
        for call in module.calls
        if (module.names.of(call.func) or dotted(call.func) or "").endswith(endings)
    ]


def _is_after(module: Module, node: ast.Call, other: ast.Call) -> bool:
    """Whether a call follows another in the same function."""
    is_same = module.enclosing_function(node) is module.enclosing_function(other)
    return (
        is_same
        and other not in module.ancestors(node)
        and (node.lineno, node.col_offset) > (other.lineno, other.col_offset)
    )
