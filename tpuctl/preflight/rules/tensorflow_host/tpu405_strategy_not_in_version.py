"""TPU405 strategy-not-in-version."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.source_findings import finding_at
from tpuctl.preflight.analysis.tensorflow.versioned_names import (
    OLD_STRATEGY,
    STRATEGIES,
    STRATEGY,
    Use,
    find_uses,
    is_guarded,
    missing_message,
    table_entry,
)
from tpuctl.preflight.findings import Edit, Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU405",
    name="strategy-not-in-version",
    severity=Severity.error,
    summary="TPUStrategy name or method missing from the runtime's TensorFlow",
    rationale=(
        "TensorFlow 2.1 has only `tf.distribute.experimental.TPUStrategy` and its "
        "`experimental_run_v2`. `run` was added in 2.2, `tf.distribute.TPUStrategy` in 2.3, and "
        "`experimental_run_v2` was removed in 2.4."
    ),
    bad="""\
import tensorflow as tf

strategy = tf.distribute.get_strategy()
strategy.experimental_run_v2(lambda: tf.constant(1.0))
""",
    good="""\
import tensorflow as tf

strategy = tf.distribute.get_strategy()
strategy.run(lambda: tf.constant(1.0))
""",
    target=Target(tensorflow="2.18.0"),
)

RUN_V2 = f"{STRATEGY}experimental_run_v2"


def find(project: Project, target: Target) -> Iterator[Finding]:
    for use in find_uses(project):
        if use.name == OLD_STRATEGY:
            yield from _old_strategy(use, target)
            continue
        entry = table_entry(use, target)
        if entry is None or entry.name not in STRATEGIES:
            continue
        hint = f"Use {entry.replacement}." if entry.replacement else ""
        missing = missing_message(project, use, entry, target)
        is_run = entry.name == RUN_V2
        edits: list[Edit] = []
        if is_run and isinstance(use.node, ast.Attribute):
            edits = [_cut(use.module, use.node.value, use.node, ".run")]
        if missing:
            yield finding_at(RULE, use.module, use.node, missing, hint, edits=edits)
        elif is_run and (target.version is None or target.version >= (2, 2)):
            text = "`experimental_run_v2` was removed in TensorFlow 2.4"
            severity = Severity.risk
            yield finding_at(RULE, use.module, use.node, text, hint, severity=severity, edits=edits)


def _old_strategy(use: Use, target: Target) -> Iterator[Finding]:
    module, node, version = use.module, use.node, target.version
    if version is None or version < (2, 3) or is_guarded(module, node):
        return
    text = "`tf.distribute.experimental.TPUStrategy` has been deprecated since TensorFlow 2.3"
    parent = module.parents.get(node)
    edits: list[Edit] = []
    if isinstance(node, ast.Attribute) and isinstance(parent, ast.Call):
        names = {keyword.arg for keyword in parent.keywords}
        inner = node.value
        if names <= {"tpu_cluster_resolver"} and isinstance(inner, ast.Attribute):
            edits = [_cut(module, inner.value, node, ".TPUStrategy")]
    hint = "Use tf.distribute.TPUStrategy."
    yield finding_at(RULE, module, node, text, hint, severity=Severity.risk, edits=edits)


def _cut(module: Module, start: ast.expr, end: ast.expr, text: str) -> Edit:
    """Replace the text between the ends of two nodes."""
    line, offset = start.end_lineno or 1, start.end_col_offset or 0
    end_line, end_offset = end.end_lineno or 1, end.end_col_offset or 0
    column, end_column = module.column(line, offset), module.column(end_line, end_offset)
    return Edit(module.path, line, column, end_line, end_column, text)
