"""TPU000 not-python."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from tpuctl.preflight.analysis.program.source import Project
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU000",
    name="not-python",
    severity=Severity.error,
    summary="File is not valid Python or cannot be read",
    rationale=(
        "The script would fail with a SyntaxError on the worker, after the machines were created. "
        "No other rule applies to such a file. tpuctl parses it with the Python version that "
        "tpuctl runs on, in the encoding that the file declares, or UTF-8. If the job's Python "
        "is newer than that, it is a risk."
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
    severity, version = RULE.severity, ""
    if target.has_newer_python_than(sys.version_info[:2]):
        severity = Severity.risk
        version = f" {sys.version_info[0]}.{sys.version_info[1]}, and {target.python_text}"
    for unreadable in project.unreadable:
        message = f"not valid Python{version}: {unreadable.message}"
        yield Finding(RULE.code, severity, unreadable.path, unreadable.line, 0, message)
