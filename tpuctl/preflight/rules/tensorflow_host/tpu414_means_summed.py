"""TPU414 means-summed."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.functions import function_of
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import argument, own_nodes, returns_of
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.tensorflow.strategy_scopes import RUNS, tpu_strategies
from tpuctl.preflight.analysis.values.host_code import HostCode
from tpuctl.preflight.analysis.values.library import array_function
from tpuctl.preflight.findings import Finding, Rule, Severity, Target
from tpuctl.preflight.rules._common import CONNECT

STEP = (
    CONNECT
    + """

def accuracy(x):
    return tf.reduce_mean(tf.cast(x > 0, tf.float32))


@tf.function
def evaluate(x):
    result = strategy.run(accuracy, args=(x,))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, result, axis=None)
"""
)

RULE = Rule(
    code="TPU414",
    name="means-summed",
    severity=Severity.risk,
    summary="The means of all replicas are added up",
    rationale=(
        "Each replica returns the mean of its own examples. `strategy.reduce` with SUM adds them "
        "up: the result is as many times too large as there are replicas. MEAN averages them."
    ),
    bad=STEP,
    good=STEP.replace("ReduceOp.SUM", "ReduceOp.MEAN"),
)

MEANS = {"reduce_mean", "math.reduce_mean"}


def find(project: Project, target: Target) -> Iterator[Finding]:
    host = HostCode.of(project)
    for module in project if tpu_strategies(project) else ():
        for call in module.calls:
            is_reduce = isinstance(call.func, ast.Attribute) and call.func.attr == "reduce"
            operation = argument(call, 0, "reduce_op")
            is_sum = getattr(operation, "attr", getattr(operation, "value", "")) == "SUM"
            if not is_reduce or not is_sum or module.names.of(call.func) is not None:
                continue
            if (mean := _mean(host, module, argument(call, 1, "value"))) is not None:
                message = f"{quoted(module, call)} adds up the means of replicas ({mean})"
                yield finding_at(RULE, module, call, message, "Use tf.distribute.ReduceOp.MEAN.")


def _mean(host: HostCode, module: Module, node: ast.expr | None) -> str | None:
    """The mean that a replica returns, if a value of all replicas certainly is one."""
    run: ast.expr | None = node
    items: tuple[int, ...] = ()
    if isinstance(node, ast.Name):
        bindings = host.bindings(module, node)
        if len(bindings) != 1 or bindings[0].is_element or bindings[0].is_updated:
            return None
        run, items = bindings[0].value, bindings[0].items
    if not isinstance(run, ast.Call) or getattr(run.func, "attr", "") not in RUNS or not run.args:
        return None
    definition = function_of(host.project, module, run.args[0])
    returned = [] if definition is None else [part.value for part in returns_of(definition[1])]
    if definition is None or len(returned) != 1:
        return None
    where, value = definition[0], returned[0]
    for item in items:
        if not isinstance(value, ast.Tuple) or item >= len(value.elts):
            return None
        value = value.elts[item]
    if isinstance(value, ast.Name):
        # The mean loss itself is reported with its gradients.
        attributes = {getattr(part, "attr", "") for part in own_nodes(definition[1])}
        if "gradient" in attributes and "loss" in value.id:
            return None
        values = host.assigned_values(where, value)
        value = values[0] if len(values) == 1 else None
    if not isinstance(value, ast.Call) or len(value.args) != 1 or value.keywords:
        return None
    is_mean = array_function(where.names.of(value.func)) in MEANS
    return quoted(where, value.func) if is_mean else None
