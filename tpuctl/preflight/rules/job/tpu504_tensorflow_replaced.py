"""TPU504 tensorflow-replaced."""

from __future__ import annotations

from collections.abc import Iterator

from tpuctl.preflight.analysis.program.source import Project
from tpuctl.preflight.analysis.requirements import installed, required_by
from tpuctl.preflight.analysis.source_findings import finding_at
from tpuctl.preflight.findings import Finding, Rule, Severity, Target
from tpuctl.preflight.rules._common import OTHER_TENSORFLOWS

RULE = Rule(
    code="TPU504",
    name="tensorflow-replaced",
    severity=Severity.risk,
    summary="The image's TensorFlow is replaced by a build without TPU support",
    rationale=(
        "A requirement `tensorflow` without a version changes nothing: jobs keep the image's. But "
        "`tensorflow-cpu`, `tensorflow-gpu`, `tf-nightly` and similar packages contain the same "
        "modules but do not support TPUs, and pip installs them over the image's. "
        "`pip install --upgrade tensorflow` in the script does the same. Scripts for JAX and "
        "PyTorch/XLA may use any build to load data."
    ),
    bad="""\
import subprocess
import sys

subprocess.run([sys.executable, "-m", "pip", "install", "tensorflow-cpu"], check=True)
""",
    good="""\
import subprocess
import sys

subprocess.run([sys.executable, "-m", "pip", "install", "tensorflow"], check=True)
""",
    target=Target(tensorflow="2.18.0"),
)

# Those that pip installs over the image's `tensorflow`.
BUILDS = OTHER_TENSORFLOWS - {"tensorflow"} | {"tensorflow-tpu", "tf-nightly-tpu"}


def find(project: Project, target: Target) -> Iterator[Finding]:
    version = target.tensorflow
    if version is None or target.brings_python or project.has_other_driver:
        return
    for requirement in required_by(project, target):
        if requirement.name in BUILDS:
            text = (
                f"{requirement.name} replaces the image's TensorFlow {version} and does not "
                "support TPUs"
            )
            hint = f"Remove {requirement.name}: jobs use the image's TensorFlow."
            yield Finding(
                RULE.code,
                RULE.severity,
                requirement.path,
                requirement.line,
                requirement.column,
                text,
                hint,
            )
    for install in installed(project):
        if install.package.name in BUILDS or (
            install.package.name == "tensorflow" and install.is_upgrade
        ):
            text = f"pip replaces the image's TensorFlow {version} with {install.word}"
            yield finding_at(
                RULE,
                install.module,
                install.call,
                text,
                "Keep the image's TensorFlow: the builds on PyPI do not support TPUs.",
            )
