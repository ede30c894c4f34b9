"""TPU406 name-not-in-version."""

from __future__ import annotations

from collections.abc import Iterator

from tpuctl.preflight.analysis.program.source import Project
from tpuctl.preflight.analysis.source_findings import finding_at
from tpuctl.preflight.analysis.tensorflow.versioned_names import (
    OLD_STRATEGY,
    STRATEGIES,
    find_uses,
    missing_message,
    table_entry,
)
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU406",
    name="name-not-in-version",
    severity=Severity.error,
    summary="Name missing from the runtime's version of TensorFlow",
    rationale=(
        "The runtime determines the version of TensorFlow. Names are added and removed between "
        "versions, and a script that uses a missing one fails with an AttributeError or "
        "ImportError. Uses guarded by `hasattr`, a version comparison or `except AttributeError` "
        "are ignored."
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
            missing = missing_message(project, use, entry, target)
            if missing:
                hint = f"Use {entry.replacement}." if entry.replacement else ""
                yield finding_at(RULE, use.module, use.node, missing, hint)
