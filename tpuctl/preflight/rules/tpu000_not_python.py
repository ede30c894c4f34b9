"""TPU000 not-python."""

from __future__ import annotations

from collections.abc import Iterator

from tpuctl.preflight.analysis.source import Project
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

__all__ = ["RULE", "find"]

RULE = Rule(
    code="TPU000",
    name="not-python",
    severity=Severity.error,
    summary="A file is not Python, or cannot be read.",
    rationale=(
        "Python would end with a SyntaxError on the worker, after the machines were made. "
        "Nothing else is found in such a file. It is read as the Python that tpuctl runs on "
        "reads it: with the encoding that its first lines name, else UTF-8."
    ),
    bad="""\
import tensorflow as tf

if tf.executing_eagerly()
    print("eager")
""",
    good="""\
import tensorflow as tf

if tf.executing_eagerly():
    print("eager")
""",
)


def find(project: Project, target: Target) -> Iterator[Finding]:
    for unreadable in project.unreadable:
        message = f"not Python: {unreadable.message}"
        yield Finding(RULE.code, RULE.severity, unreadable.path, unreadable.line, 0, message)
