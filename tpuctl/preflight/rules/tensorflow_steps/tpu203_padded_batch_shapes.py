"""TPU203 padded-batch-shapes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import argument
from tpuctl.preflight.analysis.source_findings import finding_at, method_node, quoted
from tpuctl.preflight.findings import Finding, Rule, Severity, Target
from tpuctl.preflight.rules._common import NEW_SHAPE

RULE = Rule(
    code="TPU203",
    name="padded-batch-shapes",
    severity=Severity.cost,
    summary="`padded_batch` without `padded_shapes`",
    rationale=(
        f"{NEW_SHAPE}padded_batch pads each batch to its longest example unless padded_shapes sets "
        "the length."
    ),
    bad="""\
import tensorflow as tf


def batches(data):
    return data.padded_batch(32, drop_remainder=True)
""",
    good="""\
import tensorflow as tf


def batches(data):
    return data.padded_batch(32, padded_shapes=[128], drop_remainder=True)
""",
)


def find(project: Project, target: Target) -> Iterator[Finding]:
    for module in project:
        for node in module.calls:
            method = getattr(node.func, "attr", "")
            name = module.names.of(node.func) or f".{method}"
            if name.endswith(".bucket_by_sequence_length"):
                yield from _bucketed(module, node)
            elif name == ".padded_batch":
                yield from _padded(module, node)


def _bucketed(module: Module, node: ast.Call) -> Iterator[Finding]:
    if any(key.arg in ("pad_to_bucket_boundary", "padded_shapes", None) for key in node.keywords):
        return
    message = f"{quoted(module, node.func)} pads to the longest example of each batch"
    hint = "Pad to the bucket boundaries: pad_to_bucket_boundary=True."
    yield finding_at(RULE, module, node, message, hint)


def _padded(module: Module, node: ast.Call) -> Iterator[Finding]:
    if any(key.arg is None for key in node.keywords):
        return
    shapes = argument(node, 1, "padded_shapes")
    if shapes is not None and not _has_unknown_dimension(shapes):
        return
    message = f"{quoted(module, method_node(node))} pads to the longest example of each batch"
    hint = "Set the padded length: padded_shapes=… with a number for each dimension."
    yield finding_at(RULE, module, method_node(node), message, hint)


def _has_unknown_dimension(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return node.value is None
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub)
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return any(_has_unknown_dimension(element) for element in node.elts)
    if isinstance(node, ast.Dict):
        return any(_has_unknown_dimension(value) for value in node.values)
    if isinstance(node, ast.Call):
        return any(_has_unknown_dimension(element) for element in node.args)
    return False
