"""TPU304 hugging-face-pipeline-on-node."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.source import Project
from tpuctl.preflight.analysis.source_findings import finding_at
from tpuctl.preflight.analysis.tensorflow.node_pipelines import calls_for_node
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU304",
    name="hugging-face-pipeline-on-node",
    severity=Severity.error,
    summary="`to_tf_dataset` and `prepare_tf_dataset` do not work on a TPU node",
    rationale=(
        "Hugging Face datasets feed TensorFlow through `from_generator` or `numpy_function`, which "
        "call Python. That works on a TPU VM. For a TPU node use arrays if the data fits in "
        "memory, or write TFRecords to the bucket."
    ),
    bad="""\
import datasets

data = datasets.load_dataset("imdb", split="train")
dataset = data.to_tf_dataset(columns=["input_ids"], batch_size=128, drop_remainder=True)
""",
    good="""\
import datasets
import tensorflow as tf

data = datasets.load_dataset("imdb", split="train").with_format("numpy")
dataset = tf.data.Dataset.from_tensor_slices({"input_ids": data["input_ids"]})
dataset = dataset.batch(128, drop_remainder=True)
""",
    target=Target("node"),
)

METHODS = {"to_tf_dataset", "prepare_tf_dataset"}


def find(project: Project, target: Target) -> Iterator[Finding]:
    for module, call in calls_for_node(project, target):
        if isinstance(call.func, ast.Attribute) and call.func.attr in METHODS:
            text = f"`{call.func.attr}` calls Python in the pipeline, which a TPU node cannot do"
            yield finding_at(
                RULE, module, call, text, "Use arrays, or write TFRecords to the bucket."
            )
