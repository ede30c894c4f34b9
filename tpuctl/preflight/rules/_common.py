"""What several rules say in the same words."""

from __future__ import annotations

import ast

from tpuctl.preflight.analysis.traced import Traced

__all__ = ["CONNECT", "NEW_SHAPE", "UNKNOWN_SIZE", "weighting_hint"]

# Beginnings of why a rule is.
UNKNOWN_SIZE = (
    "How many there are depends on values, so XLA gives the result a dimension of unknown size, "
    "up to a bound, and carries the real size along. It compiles, but takes more time and memory: "
)
NEW_SHAPE = "Each new shape is compiled anew, and a compilation costs as much as about 50 steps. "
# The beginning of examples that need a strategy.
CONNECT = """\
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver()
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)
"""


def weighting_hint(traced: Traced, node: ast.expr, data: ast.expr, mask: ast.expr) -> str:
    """The same by weights, in the words of the source."""
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
        "Keep the whole shape and weigh what is masked with 0:\n"
        f"    weights = tf.cast({condition}, {dtype})\n    {total}"
    )
