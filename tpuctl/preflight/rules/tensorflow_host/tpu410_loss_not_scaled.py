"""TPU410 loss-not-scaled."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.functions import function_of
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import (
    Function,
    argument,
    identifiers_in,
    own_nodes,
    returns_of,
    words_of,
)
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.tensorflow.strategy_scopes import Scopes, tpu_strategies
from tpuctl.preflight.analysis.values.host_code import HostCode
from tpuctl.preflight.analysis.values.library import array_function
from tpuctl.preflight.findings import Finding, Rule, Severity, Target
from tpuctl.preflight.rules._common import CONNECT

STEP = (
    CONNECT
    + """
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    optimizer = tf.keras.optimizers.SGD(0.1)


def replica_step(x):
    with tf.GradientTape() as tape:
        loss = MEAN
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))


@tf.function
def step(x):
    strategy.run(replica_step, args=(x,))


for x in strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors(tf.ones([64, 8]))):
    step(x)
"""
)

RULE = Rule(
    code="TPU410",
    name="loss-not-scaled",
    severity=Severity.risk,
    summary="Gradients of each replica's mean loss are summed over the replicas",
    rationale=(
        "In `strategy.run`, a Keras optimizer adds up the gradients of all replicas. If each of "
        "them has the mean over its own examples, the sum is as many times too large as there are "
        "replicas, and so is the learning rate. Divide by the global batch size instead."
    ),
    bad=STEP.replace("MEAN", "tf.reduce_mean(tf.square(model(x)))"),
    good=STEP.replace(
        "MEAN",
        "tf.nn.compute_average_loss(tf.square(model(x))[:, 0], global_batch_size=64)",
    ),
)

MEANS = {"reduce_mean", "math.reduce_mean", "mean"}
# Words in the names of code that scales the loss or aggregates the gradients itself.
SCALING = {"replicas", "replica", "global", "all", "scale", "scaled", "world", "shards", "cores"}
AGGREGATION = {"experimental_aggregate_gradients", "skip_gradients_aggregation"}
HINT = (
    "Keep the loss of each example, and divide by the global batch size:\n"
    "    loss = tf.nn.compute_average_loss(losses, global_batch_size=BATCH)"
)


def find(project: Project, target: Target) -> Iterator[Finding]:
    if not tpu_strategies(project):
        return
    for module, function in Scopes(project).replica_functions():
        nodes = list(own_nodes(function))
        calls = [part for part in nodes if isinstance(part, ast.Call)]
        methods = {getattr(call.func, "attr", ""): call for call in calls}
        gradient, applied = methods.get("gradient"), methods.get("apply_gradients")
        if gradient is None or applied is None or _scales(function):
            continue
        loss = argument(gradient, 0, "target")
        for where, mean in _mean(HostCode.of(project), module, loss):
            message = (
                f"{quoted(where, mean)} is the mean of one replica, and "
                f"{quoted(module, applied.func)} sums the gradients of all"
            )
            yield finding_at(RULE, where, mean, message, HINT)


def _scales(function: Function) -> bool:
    names = set(identifiers_in(function)) - {getattr(function, "name", "")}
    keywords = {part.arg for part in ast.walk(function) if isinstance(part, ast.keyword)}
    return not SCALING.isdisjoint(words_of(names)) or not AGGREGATION.isdisjoint(keywords)


def _mean(
    host: HostCode, module: Module, loss: ast.expr | None
) -> Iterator[tuple[Module, ast.Call]]:
    """The call that computes a loss, if it certainly is a mean over a replica's examples."""
    values = host.assigned_values(module, loss) if isinstance(loss, ast.Name) else []
    calls = [value for value in values if isinstance(value, ast.Call)]
    others = [value for value in values if value not in calls]
    if len(calls) != 1 or not all(value and _only_adjusts(loss, value) for value in others):
        return
    call = calls[0]
    definition = function_of(host.project, module, call.func)
    if definition is not None and not _scales(definition[1]):
        returned = [statement.value for statement in returns_of(definition[1])]
        if len(returned) == 1 and isinstance(returned[0], ast.Call):
            module, call = definition[0], returned[0]
    is_mean = array_function(module.names.of(call.func)) in MEANS
    if is_mean and len(call.args) == 1 and not call.keywords:
        yield module, call


def _only_adjusts(loss: ast.expr | None, value: ast.expr) -> bool:
    """Whether a value adds to a loss, or weights it, and does not divide it by a number of
    replicas."""
    parts = list(ast.walk(value))
    is_divided = any(isinstance(part, (ast.Div, ast.FloorDiv, ast.Call)) for part in parts)
    name = getattr(loss, "id", "")
    return not is_divided and any(getattr(part, "id", "") == name for part in parts)
