"""TPU406 name-not-in-version."""

from __future__ import annotations

from collections.abc import Iterator

from tpuctl.preflight.analysis.source import Project
from tpuctl.preflight.analysis.source_findings import finding_at
from tpuctl.preflight.analysis.tensorflow_names import (
    OLD_STRATEGY,
    STRATEGIES,
    find_uses,
    missing_message,
    table_entry,
)
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

__all__ = ["RULE", "find"]

RULE = Rule(
    code="TPU406",
    name="name-not-in-version",
    severity=Severity.error,
    summary="The runtime's TensorFlow no longer has, or not yet, what the script asks for.",
    rationale=(
        "The version of TensorFlow is the runtime's: each has names that others lack, and a "
        "script that asks for one stops with an AttributeError or an ImportError. What stands "
        "behind `hasattr`, a comparison of versions or `except AttributeError` is left alone."
    ),
    bad="""\
import tensorflow as tf

optimizer = tf.keras.optimizers.experimental.AdamW()
""",
    good="""\
import tensorflow as tf

optimizer = tf.keras.optimizers.AdamW()
""",
    target=Target(tensorflow="2.18.0"),
)


def find(project: Project, target: Target) -> Iterator[Finding]:
    for use in find_uses(project):
        entry = table_entry(use, target)
        if entry and entry.name not in STRATEGIES and use.name != OLD_STRATEGY:
            lack = missing_message(project, use, entry, target)
            if lack:
                hint = f"Write {entry.instead}." if entry.instead else ""
                yield finding_at(RULE, use.module, use.node, lack, hint)
