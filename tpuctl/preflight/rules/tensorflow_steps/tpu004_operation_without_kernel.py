"""TPU004 operation-without-kernel."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from tpuctl.preflight.analysis.program.qualified_names import keras_name
from tpuctl.preflight.analysis.program.source import Project
from tpuctl.preflight.analysis.program.syntax import argument
from tpuctl.preflight.analysis.source_findings import UNREACHED, UNSURE, finding_at, quoted
from tpuctl.preflight.analysis.tracing.inference import Inference, infer
from tpuctl.preflight.analysis.tracing.traced import Traced
from tpuctl.preflight.analysis.values.abstract_values import Kind
from tpuctl.preflight.analysis.values.library import short
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU004",
    name="operation-without-kernel",
    severity=Severity.error,
    summary="Compiled code uses an operation that XLA does not support",
    rationale=(
        "A TPU runs only operations that XLA can compile. Python functions, printing, strings, "
        "parsing and decoding, hash tables, sets, most of `tf.sparse`, sorted segments and "
        'datasets are not among them: the step fails with "Detected unsupported operations". They '
        "work in `dataset.map`, which runs on the host. After "
        "`tf.config.set_soft_device_placement(True)`, TensorFlow runs them on the host in each "
        "step: prints and summaries are not reported then, and others are a cost."
    ),
    bad="""\
import tensorflow as tf


@tf.function
def step(x):
    tf.print("largest", tf.reduce_max(x))
    return x * 2
""",
    good="""\
import tensorflow as tf


@tf.function
def step(x):
    return x * 2, tf.reduce_max(x)


def train(x):
    _, largest = step(x)
    tf.print("largest", largest)
""",
)

DATA = Path(__file__).with_name("tpu004_operations.json")
SUMMARIES = {"scalar", "histogram", "image", "text", "audio", "write"}
WRITERS = {"tensorflow.summary.create_file_writer", "tensorflow.summary.SummaryWriter"}
REFUSED_RESIZES = ("area", "bicubic", "lanczos3", "lanczos5", "gaussian", "mitchellcubic")
REFUSED_LAYERS = {"layers.TextVectorization", "layers.StringLookup", "layers.IntegerLookup"}
REPLACEMENTS = {
    "print": "Return the value from the step and print it on the host.",
    "py_function": "Use TensorFlow operations, or call it in dataset.map on the host.",
    "numpy_function": "Use TensorFlow operations, or call it in dataset.map on the host.",
    "math.segment_sum": "Use tf.math.unsorted_segment_sum with a fixed num_segments.",
    "math.segment_mean": "Use tf.math.unsorted_segment_mean with a fixed num_segments.",
    "math.segment_max": "Use tf.math.unsorted_segment_max with a fixed num_segments.",
    "math.segment_min": "Use tf.math.unsorted_segment_min with a fixed num_segments.",
    "image.combined_non_max_suppression": "Use tf.image.non_max_suppression_padded.",
    "math.reduce_euclidean_norm": "Use tf.norm.",
    "linalg.det": "Multiply the diagonal of tf.linalg.cholesky or tf.linalg.qr.",
    "linalg.slogdet": "Use tf.linalg.logdet if the matrix is positive definite.",
    "sparse.sparse_dense_matmul": "Use tf.matmul on a dense matrix, or tf.gather and a sum.",
    "nn.sampled_softmax_loss": "Use the full softmax, or sample the candidates in dataset.map.",
    "nn.nce_loss": "Use the full softmax, or sample the candidates in dataset.map.",
}
SOFT_PLACEMENT = "tensorflow.config.set_soft_device_placement"
RUN_ON_HOST = "Do it in dataset.map, which runs on the host, or after the step."


@cache
def _data() -> dict[str, Any]:
    """`has`: operations that the TPU compiler supports; `refused`: unsupported operations by the
    function that creates them; and where both are from."""
    tables: dict[str, Any] = json.loads(DATA.read_text("utf-8"))
    return tables


def find(project: Project, target: Target) -> Iterator[Finding]:
    is_soft = _is_placed_softly(project)
    for finding in _find(project, target, is_soft):
        if not is_soft:
            yield finding
            continue
        message = finding.message.removesuffix(UNREACHED).removesuffix(UNSURE)
        message += ": it runs on the host in each step"
        yield replace(finding, severity=Severity.cost, message=message)


def _is_placed_softly(project: Project) -> bool:
    """Whether the script lets TensorFlow move what XLA cannot compile to the host."""
    for module in project:
        for call in module.calls:
            if module.names.of(call.func) == SOFT_PLACEMENT:
                enabled = argument(call, 0, "enabled")
                if not isinstance(enabled, ast.Constant) or enabled.value:
                    return True
    return False


def _find(project: Project, target: Target, is_soft: bool) -> Iterator[Finding]:
    inference = infer(project, target)
    has_writer = any(
        module.names.of(call.func) in WRITERS for module in project for call in module.calls
    )
    for traced, node in inference.sites:
        if isinstance(node, ast.Call):
            if not (is_soft and _only_writes(traced, node)):
                yield from _unsupported_call(inference, traced, node, has_writer)
        elif isinstance(node, (ast.For, ast.comprehension)):
            yield from _dataset_loop(inference, traced, node.iter)
        elif isinstance(node, ast.Subscript):
            owner = inference.of(node.value)
            if owner.kind is Kind.OBJECT and owner.name.startswith("tensorflow.lookup."):
                yield _table(traced, node)


def _only_writes(traced: Traced, node: ast.Call) -> bool:
    """Whether a call prints or writes a summary, so that nothing comes back to the step."""
    function = short(traced.module.names.of(node.func) or "") or ""
    return function == "print" or function.startswith("summary.")


def _unsupported_call(
    inference: Inference, traced: Traced, node: ast.Call, has_writer: bool
) -> Iterator[Finding]:
    name = traced.module.names.of(node.func)
    function = short(name) if name is not None else None
    if function is None:
        yield from _method(inference, traced, node)
        return
    operations: list[str] = _data()["refused"].get(function, [])
    if function.startswith("raw_ops."):
        operation = function.removeprefix("raw_ops.")
        operations = [] if operation in _data()["has"] else [operation]
    if function == "image.resize":
        operations = _resize(traced, node)
    if function.startswith("summary.") and function.removeprefix("summary.") in SUMMARIES:
        operations = ["WriteSummary"] if has_writer else []
    if function == "unique_with_counts" or function.startswith("ragged."):
        return  # reported by the rules about shapes
    if operations:
        ops = " or ".join(operations[:2])
        message = (
            f"{quoted(traced.module, node.func)} creates {ops}, which XLA does not support on TPUs"
        )
        if not traced.is_root:
            message += f" ({traced.because})"
        hint = REPLACEMENTS.get(function, RUN_ON_HOST)
        yield finding_at(RULE, traced, node, message, hint)


def _resize(traced: Traced, node: ast.Call) -> list[str]:
    if any(
        key.arg == "antialias" and isinstance(key.value, ast.Constant) and key.value.value is True
        for key in node.keywords
    ):
        return ["ScaleAndTranslate"]
    method = argument(node, 2, "method")
    text = ""
    if isinstance(method, ast.Constant):
        text = str(method.value)
    elif isinstance(method, ast.Attribute):
        text = method.attr.lower()
    if text not in REFUSED_RESIZES:
        return []
    return [{"area": "ResizeArea", "bicubic": "ResizeBicubic"}.get(text, "ScaleAndTranslate")]


def _method(inference: Inference, traced: Traced, node: ast.Call) -> Iterator[Finding]:
    owner = inference.of(node.func)
    if isinstance(node.func, ast.Attribute) and node.func.attr == "lookup":
        table = inference.of(node.func.value)
        if table.kind is Kind.OBJECT and table.name.startswith("tensorflow.lookup."):
            yield _table(traced, node)
    if owner.kind is Kind.OBJECT and keras_name(owner.name) in REFUSED_LAYERS and node.args:
        kind = owner.name.rpartition(".")[2]
        text = quoted(traced.module, node.func)
        message = f"{text} is a {kind}, whose lookup table XLA does not support"
        hint = "Call the layer in dataset.map, which runs on the host."
        yield finding_at(RULE, traced, node, message, hint)


def _table(traced: Traced, node: ast.AST) -> Finding:
    message = (
        f"{quoted(traced.module, node)} looks up a hash table, which XLA does not support on TPUs"
    )
    return finding_at(RULE, traced, node, message, RUN_ON_HOST)


def _dataset_loop(inference: Inference, traced: Traced, node: ast.expr) -> Iterator[Finding]:
    over = inference.of(node)
    if over.kind is not Kind.OBJECT or not over.name.startswith("tensorflow.data."):
        return
    if traced.is_own_program and not _is_compiled(traced) and not traced.calls:
        return  # a loop on the host around the steps
    message = f"iterates over the dataset {quoted(traced.module, node)} in compiled code"
    hint = "Iterate on the host and pass each batch to the step."
    yield finding_at(RULE, traced, node, message, hint)


def _is_compiled(traced: Traced) -> bool:
    for decorator in getattr(traced.node, "decorator_list", []):
        for key in getattr(decorator, "keywords", []):
            if key.arg == "jit_compile":
                return isinstance(key.value, ast.Constant) and key.value.value is True
    return False
