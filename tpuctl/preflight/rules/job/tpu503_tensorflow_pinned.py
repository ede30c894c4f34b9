"""TPU503 tensorflow-pinned."""

from __future__ import annotations

from collections.abc import Iterator

from tpuctl.model.scripts.requirement_files import allows
from tpuctl.preflight.analysis.program.source import Project
from tpuctl.preflight.analysis.requirements import installed, required_by
from tpuctl.preflight.analysis.source_findings import finding_at
from tpuctl.preflight.findings import Finding, Rule, Severity, Target

RULE = Rule(
    code="TPU503",
    name="tensorflow-pinned",
    severity=Severity.error,
    summary="TensorFlow pinned to a version that differs from the runtime's",
    rationale=(
        "The image's TensorFlow is built for TPUs, and jobs keep it: its version is a constraint "
        "for pip, which rejects requirements that need another version before the job starts. "
        "Packages that the script itself installs are not constrained: they replace the image's "
        "TensorFlow with a build that does not support TPUs. Scripts for JAX and PyTorch/XLA only "
        "load data with TensorFlow, in any version: their runtime has none, unless the stack file "
        "names another."
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
    loads_data = project.has_other_driver
    if version is None or (loads_data and not target.image):
        return
    for requirement in required_by(project, target):
        if requirement.name == "tensorflow" and not allows(requirement.clauses, version):
            pin = f"{requirement.name}{requirement.clauses.strip()}"
            text = f"{pin} cannot be installed: jobs keep the runtime's TensorFlow {version}"
            hint = "Remove TensorFlow from the requirements, or choose another runtime."
            if target.brings_python:
                text = f"{pin} does not work with the TPU node, which has TensorFlow {version}"
                hint = f"Use tensorflow=={version}, or choose another runtime."
            if loads_data:
                hint = "Use the runtime without TensorFlow:\n    job: {framework: jax}"
                if project.drives_torch:
                    hint = hint.replace("jax", "torch")
            yield Finding(
                RULE.code,
                Severity.risk if loads_data else RULE.severity,
                requirement.path,
                requirement.line,
                requirement.column,
                text,
                hint,
            )
    for install in installed(project) if not loads_data else ():
        package = install.package
        is_pin = package.name == "tensorflow" and not install.is_upgrade  # TPU504 reports upgrades
        if is_pin and not allows(package.clauses, version):
            text = f"pip replaces the runtime's TensorFlow {version} with {install.word}"
            hint = "Keep the image's TensorFlow: the builds on PyPI do not support TPUs."
            yield finding_at(RULE, install.module, install.call, text, hint)
