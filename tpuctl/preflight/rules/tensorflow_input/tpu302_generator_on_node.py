"""TPU302 generator-on-node."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.functions import class_of, function_of, keras_bases
from tpuctl.preflight.analysis.program.qualified_names import keras_name
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import argument, own_nodes
from tpuctl.preflight.analysis.source_findings import finding_at
from tpuctl.preflight.analysis.tensorflow.node_pipelines import calls_for_node
from tpuctl.preflight.analysis.values.host_code import HostCode
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU302",
    name="generator-on-node",
    severity=Severity.error,
    summary="A TPU node cannot call a Python generator",
    rationale=(
        "`from_generator` and `fit` on a generator or a Keras sequence call back into the script's "
        "Python process for each example. The pipeline of a TPU node runs on another machine, "
        "without that process. Write the examples to TFRecords in the bucket, or use arrays."
    ),
    bad="""\
import tensorflow as tf


def examples():
    for number in range(1000):
        yield [float(number)]


dataset = tf.data.Dataset.from_generator(examples, output_signature=tf.TensorSpec([1], tf.float32))
""",
    good="""\
import numpy as np
import tensorflow as tf

examples = np.arange(1000, dtype="float32").reshape(-1, 1)
dataset = tf.data.Dataset.from_tensor_slices(examples)
""",
    target=Target("node"),
)

FLOW_METHODS = {"flow", "flow_from_directory", "flow_from_dataframe"}
GENERATORS = {"utils.Sequence", "utils.PyDataset"}
HINT = "Write the examples to TFRecords in the bucket, or use arrays."


def find(project: Project, target: Target) -> Iterator[Finding]:
    for module, call in calls_for_node(project, target):
        name = module.names.of(call.func) or ""
        if name.startswith("tensorflow.") and name.endswith("data.Dataset.from_generator"):
            text = "`from_generator` calls Python, which a TPU node cannot do"
            yield finding_at(RULE, module, call, text, HINT)
        elif isinstance(call.func, ast.Attribute) and call.func.attr == "fit":
            value = argument(call, 0, "x")
            if value is not None and _is_generator(project, module, value):
                text = f"`{module.segment(value)}` is Python, which a TPU node cannot call"
                yield finding_at(RULE, module, value, text, HINT)


def _is_generator(project: Project, module: Module, node: ast.expr) -> bool:
    """Whether Keras calls Python for each batch of it."""
    if isinstance(node, ast.Name):
        bindings = HostCode.of(project).bindings(module, node)
        values = [
            binding.value
            for binding in bindings
            if binding.value is not None and not binding.is_element
        ]
        return len(values) == 1 == len(bindings) and _is_generator(project, module, values[0])
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute) and node.func.attr in FLOW_METHODS:
        return True
    owner = class_of(project, module, node.func)
    if owner is not None:
        bases = (keras_name(base) for base in keras_bases(project, *owner))
        return any(base in GENERATORS for base in bases)
    definition = function_of(project, module, node.func)
    if definition is None:
        return False
    return any(isinstance(part, (ast.Yield, ast.YieldFrom)) for part in own_nodes(definition[1]))
