"""TPU201 last-batch."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import identifiers_and_texts_in
from tpuctl.preflight.analysis.source_findings import finding_at, method_node, quoted
from tpuctl.preflight.analysis.tensorflow.datasets import (
    divides_evenly,
    is_endless,
    stays_on_host,
)
from tpuctl.preflight.analysis.tracing.inference import Inference, infer
from tpuctl.preflight.analysis.values.abstract_values import Kind
from tpuctl.preflight.analysis.values.host_code import HostCode
from tpuctl.preflight.findings import Finding, Rule, Severity, Target
from tpuctl.preflight.rules._common import NEW_SHAPE

RULE = Rule(
    code="TPU201",
    name="last-batch",
    severity=Severity.cost,
    summary="Last batch is smaller than the others",
    rationale=(
        f"{NEW_SHAPE}Without drop_remainder the batch size is unknown, and the last batch of an "
        "epoch is smaller unless the number of examples is a multiple of the batch size. For "
        "evaluation, pad the last batch instead: dropping it would change the result."
    ),
    bad="""\
import tensorflow as tf


def training_data(paths):
    data = tf.data.TFRecordDataset(paths).shuffle(1000)
    return data.batch(64)
""",
    good="""\
import tensorflow as tf


def training_data(paths):
    data = tf.data.TFRecordDataset(paths).shuffle(1000)
    return data.batch(64, drop_remainder=True)
""",
)

# Methods that only datasets have.
DATASET_METHODS = {
    "shuffle",
    "prefetch",
    "repeat",
    "padded_batch",
    "interleave",
    "with_options",
    "unbatch",
}
DATASET_METHODS |= {
    "cache",
    "as_numpy_iterator",
    "flat_map",
    "batch",
    "map",
    "take",
    "skip",
    "filter",
}
EVALUATION_NAME = re.compile(
    r"(?:^|_)(?:eval|evaluation|val|valid|validation|test|testing|dev|predict\w*|infer\w*)(?:_|$|\d)"
)
EVALUATION_METHODS = {"evaluate", "predict", "adapt"}


def find(project: Project, target: Target) -> Iterator[Finding]:
    inference = infer(project, target)
    for module in project:
        for node in module.calls:
            func = node.func
            if not isinstance(func, ast.Attribute) or func.attr != "batch":
                continue
            if module.names.of(func) is None:
                yield from _batch(inference, module, node, func)


def _batch(
    inference: Inference, module: Module, node: ast.Call, func: ast.Attribute
) -> Iterator[Finding]:
    if len(node.args) > 1 or any(key.arg in ("drop_remainder", None) for key in node.keywords):
        return
    if not node.args and not node.keywords:
        return
    calls_before = list(_chain(inference.host, module, func.value))
    if not _is_dataset(inference, module, func.value, calls_before):
        return
    if any(is_endless(call) for call in calls_before) or _is_for_evaluation(module, node):
        return
    host = inference.host
    if divides_evenly(host, module, node, calls_before):
        return
    if stays_on_host(inference.project, module, node):
        return
    message = (
        f"the last batch of {quoted(module, method_node(node))} may be smaller than the others"
    )
    text = module.segment(node)
    hint = f"For training: {text[:-1]}, drop_remainder=True)"
    yield finding_at(RULE, module, method_node(node), message, hint)


def _chain(host: HostCode, module: Module, node: ast.expr) -> Iterator[ast.Call]:
    """The calls that build a dataset, followed through a variable."""
    while isinstance(node, ast.Call):
        yield node
        if not isinstance(node.func, ast.Attribute):
            return
        node = node.func.value
    if isinstance(node, ast.Name):
        for value in host.assigned_values(module, node):
            if value is not None and value.lineno <= node.lineno:
                yield from (part for part in ast.walk(value) if isinstance(part, ast.Call))


def _is_dataset(
    inference: Inference, module: Module, node: ast.expr, calls_before: list[ast.Call]
) -> bool:
    value = inference.host.evaluate(module, node)
    if value.kind is Kind.OBJECT and value.name.startswith("tensorflow.data"):
        return True
    if value.is_symbolic or value.kind is Kind.STATIC:
        return False
    names = [module.names.of(call.func) or "" for call in calls_before]
    if any(name.startswith(("tensorflow.data.", "tensorflow_datasets.")) for name in names):
        return True
    methods = {call.func.attr for call in calls_before if isinstance(call.func, ast.Attribute)}
    return bool(methods & DATASET_METHODS) or (
        isinstance(node, ast.Name)
        and bool(re.search(r"(?:^|_)(?:ds|data|dataset|datasets)(?:_|$|\d)", node.id))
    )


def _is_for_evaluation(module: Module, node: ast.AST) -> bool:
    """Whether the dataset is named for evaluation, or passed to an evaluation method."""
    for ancestor in module.ancestors(node):
        if isinstance(ancestor, ast.Assign):
            for target in ancestor.targets:
                if isinstance(target, ast.Name) and EVALUATION_NAME.search(target.id.lower()):
                    return True
                if isinstance(target, ast.Name) and _is_evaluated(module, target):
                    return True
        elif (
            isinstance(ancestor, ast.keyword)
            and ancestor.arg
            and EVALUATION_NAME.search(ancestor.arg.lower())
        ) or (
            isinstance(ancestor, ast.Call)
            and getattr(ancestor.func, "attr", "") in EVALUATION_METHODS
        ):
            return True
        elif isinstance(ancestor, ast.FunctionDef):
            if EVALUATION_NAME.search(ancestor.name.lower()):
                return True
        elif isinstance(ancestor, ast.If) and any(
            EVALUATION_NAME.search(name.lower()) for name in identifiers_and_texts_in(ancestor.test)
        ):
            return True
    return False


def _is_evaluated(module: Module, target: ast.Name) -> bool:
    """Whether a variable is used for evaluation and not for training."""
    around = module.enclosing_function(target) or module.tree
    uses: set[str] = set()
    for node in ast.walk(around):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            arguments = [*node.args, *(key.value for key in node.keywords if key.arg == "x")]
            if any(isinstance(arg, ast.Name) and arg.id == target.id for arg in arguments):
                uses.add(node.func.attr)
            for key in node.keywords:
                if isinstance(key.value, ast.Name) and key.value.id == target.id:
                    uses.add(key.arg or "")
    return bool(uses & {"evaluate", "predict", "validation_data"}) and "fit" not in uses
