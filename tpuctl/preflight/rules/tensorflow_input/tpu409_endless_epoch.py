"""TPU409 endless-epoch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.control_flow import is_in_branch
from tpuctl.preflight.analysis.program.functions import function_of
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import argument, returns_of
from tpuctl.preflight.analysis.source_findings import finding_at, quoted
from tpuctl.preflight.analysis.tensorflow.datasets import KEEPS_LENGTH, is_endless
from tpuctl.preflight.analysis.tensorflow.strategy_scopes import Scopes
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU409",
    name="endless-epoch",
    severity=Severity.error,
    summary="Keras reads a dataset that repeats without end, and knows no number of steps",
    rationale=(
        "After `repeat()`, a dataset has no end. Keras 2 refuses it without `steps_per_epoch`; "
        "Keras 3 never finishes the first epoch, so that no validation, checkpoint or schedule by "
        "epochs runs."
    ),
    bad="""\
import tensorflow as tf

data = tf.data.Dataset.from_tensor_slices((tf.ones([64, 8]), tf.ones([64, 1])))
data = data.repeat().batch(8, drop_remainder=True)
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(data, epochs=3)
""",
    good="""\
import tensorflow as tf

data = tf.data.Dataset.from_tensor_slices((tf.ones([64, 8]), tf.ones([64, 1])))
data = data.repeat().batch(8, drop_remainder=True)
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(data, epochs=3, steps_per_epoch=8)
""",
)

# Methods of a Keras model: the arguments with data, and those with the number of steps.
METHODS = {
    "fit": (((0, "x"), "steps_per_epoch"), ((-1, "validation_data"), "validation_steps")),
    "evaluate": (((0, "x"), "steps"),),
    "predict": (((0, "x"), "steps"),),
}
KEEPS_END = KEEPS_LENGTH | {"batch", "padded_batch", "apply", "interleave", "unbatch", "skip"}
MAX_DEPTH = 10


def find(project: Project, target: Target) -> Iterator[Finding]:
    search = Scopes(project)
    for module in project:
        for call in module.calls:
            if not isinstance(call.func, ast.Attribute) or module.names.of(call.func) is not None:
                continue
            if any(keyword.arg is None for keyword in call.keywords):
                continue
            for (number, name), steps in METHODS.get(call.func.attr, ()):
                data = argument(call, number, name)
                count = argument(call, -1, steps)
                if data is None or not (count is None or _is_none(count)):
                    continue
                if _repeats(search, module, data, MAX_DEPTH) and search.creations(
                    module, call.func.value, "model"
                ):
                    text = f"{quoted(module, data)} repeats without end, and {steps} is not set"
                    yield finding_at(RULE, module, call, text, f"Set {steps}, or a repeat count.")


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _repeats(search: Scopes, module: Module, node: ast.expr | None, depth: int) -> bool:
    """Whether an expression is certainly a dataset without end."""
    if not depth or node is None:
        return False
    if isinstance(node, ast.Name):
        values = [
            binding.value
            for binding in search.host.bindings(module, node)
            if getattr(binding.value, "lineno", node.lineno) < node.lineno and binding.is_plain
        ]
        if not values or values[-1] is None or is_in_branch(module, values[-1], None):
            return False
        return _repeats(search, module, values[-1], depth - 1)
    if not isinstance(node, ast.Call):
        return False
    definition = function_of(search.project, module, node.func)
    if definition is not None:
        returned = list(returns_of(definition[1]))
        return len(returned) == 1 and _repeats(search, definition[0], returned[0].value, depth - 1)
    if is_endless(node):
        return True
    if isinstance(node.func, ast.Attribute) and node.func.attr in KEEPS_END:
        return _repeats(search, module, node.func.value, depth - 1)
    return False
