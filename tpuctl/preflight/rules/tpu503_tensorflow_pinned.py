"""TPU503 tensorflow-pinned."""

from __future__ import annotations

from collections.abc import Iterator

from tpuctl.preflight.analysis.requirements import allows, installed, required
from tpuctl.preflight.analysis.source import Project
from tpuctl.preflight.analysis.source_findings import finding_at
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

__all__ = ["RULE", "find"]

RULE = Rule(
    code="TPU503",
    name="tensorflow-pinned",
    severity=Severity.error,
    summary="TensorFlow is pinned to a version that the runtime does not have.",
    rationale=(
        "The image's TensorFlow is built for the TPU, and jobs keep it: pip is told its version "
        "as a constraint, and refuses a requirements file that asks for another, before the job "
        "begins. What the script itself installs is under no such constraint: it takes the place "
        "of the image's TensorFlow and finds no TPU."
    ),
    bad="""\
import subprocess
import sys

subprocess.run([sys.executable, "-m", "pip", "install", "tensorflow==2.12.0"], check=True)
""",
    good="""\
import subprocess
import sys

subprocess.run([sys.executable, "-m", "pip", "install", "tensorflow-datasets"], check=True)
""",
    target=Target(tensorflow="2.18.0"),
)


def find(project: Project, target: Target) -> Iterator[Finding]:
    version = target.tensorflow
    if version is None:
        return
    for requirement in required(project.root):
        if requirement.name == "tensorflow" and not allows(requirement.clauses, version):
            pin = f"{requirement.name}{requirement.clauses.strip()}"
            text = f"{pin} cannot be installed: jobs keep the runtime's TensorFlow {version}"
            hint = "Take TensorFlow out of the requirements, or choose another runtime."
            yield Finding(
                RULE.code,
                RULE.severity,
                requirement.path,
                requirement.line,
                requirement.column,
                text,
                hint,
            )
    for by in installed(project):
        package = by.package
        is_pin = package.name == "tensorflow" and not by.is_upgrade  # else it is of TPU504
        if is_pin and not allows(package.clauses, version):
            text = f"pip puts {by.word} in the place of the runtime's TensorFlow {version}"
            hint = "Keep the image's: what PyPI has finds no TPU."
            yield finding_at(RULE, by.module, by.call, text, hint)
