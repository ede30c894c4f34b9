"""Texts and examples shared by several rules."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tpuctl.preflight.analysis.source_findings import UNSURE, finding_at
from tpuctl.preflight.analysis.tracing.traced import Traced
from tpuctl.preflight.findings import Finding, Rule, Severity

if TYPE_CHECKING:
    from tpuctl.preflight.analysis.jax.inference import JaxInference

# Shared first sentences of rationales.
UNKNOWN_SIZE = (
    "The size of the result depends on tensor values, so XLA gives it a bounded dynamic dimension "
    "and tracks the actual size at run time. It compiles, but takes more time and memory"
)
NEW_SHAPE = (
    "Every new shape triggers a recompilation, and one compilation costs as much as about 50 "
    "steps. "
)
# Packages that contain the module `tensorflow`, and do not support TPUs.
OTHER_TENSORFLOWS = {
    *("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tensorflow-intel", "tensorflow-macos"),
    *("tensorflow-rocm", "intel-tensorflow", "tensorflow-cpu-aws"),
    *("tf-nightly", "tf-nightly-cpu", "tf-nightly-gpu", "tf-nightly-intel"),
}
# The first lines of examples that need a strategy.
CONNECT = """\
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver()
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)
"""
# A custom training loop.
TRAINING_LOOP = """\
import tensorflow as tf

weights = tf.Variable(tf.ones([8, 1]))


@tf.function
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(x @ weights))
    weights.assign_sub(0.1 * tape.gradient(loss, weights))
    return loss


for number in range(1000):
    loss = step(tf.ones([4, 8]))
"""


def failure(
    inference: JaxInference,
    rule: Rule,
    traced: Traced,
    node: ast.AST,
    message: str,
    hint: str,
    evaluated: ast.AST | None = None,
) -> Finding:
    """A finding in code that JAX traces: a risk where a conditional decides whether it runs.

    `evaluated` is the expression whose evaluation fails, if it is not the node itself.
    """
    if inference.is_certain(evaluated or node):
        return finding_at(rule, traced, node, message, hint)
    return finding_at(rule, traced, node, message + UNSURE, hint, severity=Severity.risk)


# The beginning of a training loop for PyTorch/XLA, and its step.
TORCH_LOOP = """\
import torch
import torch_xla

device = torch_xla.device()
model = torch.nn.Linear(8, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1000):
    optimizer.zero_grad()
"""
TORCH_STEP = f"""\
{TORCH_LOOP}\
    loss = model(torch.ones(4, 8, device=device)).square().mean()
    loss.backward()
    optimizer.step()
"""


def weighting_hint(traced: Traced, node: ast.expr, data: ast.expr, mask: ast.expr) -> str:
    """A hint that replaces masking with weights, written with the names in the source."""
    values, condition = traced.module.segment(data), traced.module.segment(mask)
    dtype = f"{values}.dtype" if isinstance(data, (ast.Name, ast.Attribute)) else "tf.float32"
    around = traced.module.parents.get(node)
    reduced = ""
    if isinstance(around, ast.Call) and around.args and around.args[0] is node:
        reduced = (traced.module.names.of(around.func) or "").rpartition(".")[2]
    name = "loss"
    holder = traced.module.parents.get(around) if around is not None else None
    target = holder if reduced else around
    if isinstance(target, ast.Assign) and isinstance(target.targets[0], ast.Name):
        name = target.targets[0].id
    if not isinstance(data, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
        values = f"({values})"
    total = f"{name} = tf.reduce_sum({values} * weights)"
    if reduced != "reduce_sum":
        total += " / tf.reduce_sum(weights)"
    return (
        "Keep the full shape and give masked elements weight 0:\n"
        f"    weights = tf.cast({condition}, {dtype})\n    {total}"
    )
