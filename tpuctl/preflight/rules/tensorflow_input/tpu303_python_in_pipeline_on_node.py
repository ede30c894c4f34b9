"""TPU303 python-in-pipeline-on-node."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.source import Project
from tpuctl.preflight.analysis.source_findings import callee_text, finding_at
from tpuctl.preflight.analysis.tensorflow.node_pipelines import calls_reached, is_step, only_writes
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU303",
    name="python-in-pipeline-on-node",
    severity=Severity.error,
    summary="A TPU node cannot run Python functions in its pipeline",
    rationale=(
        "`py_function` and `numpy_function` call back into the process that created them. The "
        "pipeline of a TPU node runs on another machine. Write the step with TensorFlow "
        "operations, or preprocess the data once and store the result in the bucket."
    ),
    bad="""\
import numpy as np
import tensorflow as tf


def scale(image):
    return tf.numpy_function(lambda x: np.float32(x / 255), [image], tf.float32)


dataset = tf.data.Dataset.from_tensor_slices(np.ones([8, 4, 4], "uint8")).map(scale)
""",
    good="""\
import numpy as np
import tensorflow as tf


def scale(image):
    return tf.cast(image, tf.float32) / 255


dataset = tf.data.Dataset.from_tensor_slices(np.ones([8, 4, 4], "uint8")).map(scale)
""",
    target=Target("node"),
)

PYTHON_FUNCTIONS = {
    "tensorflow.py_function",
    "tensorflow.numpy_function",
    "tensorflow.py_func",
    "tensorflow.compat.v1.py_func",
}
HINT = "Use TensorFlow operations, or preprocess the data once and store it in the bucket."


def find(project: Project, target: Target) -> Iterator[Finding]:
    if target.kind != "node" or only_writes(project):
        return
    seen: set[ast.AST] = set()
    steps = [(module, call) for module in project for call in module.calls if is_step(call)]
    for module, step in steps:
        for where, nested in calls_reached(project, module, step.args[0]) if step.args else ():
            if where.names.of(nested.func) in PYTHON_FUNCTIONS and nested not in seen:
                seen.add(nested)
                called = callee_text(where, nested)
                text = f"`{called}` in the pipeline calls Python, which a TPU node cannot do"
                yield finding_at(RULE, where, nested, text, HINT)
