"""TPU506 tensorflow-unavailable."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.catalog import TENSORFLOW_GENERATIONS
from tpuctl.model.scripts.requirement_files import required
from tpuctl.preflight.analysis.program.source import Project
from tpuctl.preflight.analysis.requirements import installed
from tpuctl.preflight.analysis.source_findings import finding_at
from tpuctl.preflight.findings import Finding, Rule, Severity, Target
from tpuctl.preflight.rules._common import OTHER_TENSORFLOWS

RULE = Rule(
    code="TPU506",
    name="tensorflow-unavailable",
    severity=Severity.error,
    summary="TensorFlow on a TPU that it does not support, or on an image without it",
    rationale=(
        "TensorFlow does not support TPU7x. For v5p and v6e, Compute Engine's images have no "
        "TensorFlow, nor have the base runtimes of the Cloud TPU API: the job has to install "
        "`tensorflow-tpu`, which brings its libtpu. `tensorflow` and its other builds on PyPI do "
        "not support TPUs. If `job.setup` or extras may install it, it is a risk. "
        "Scripts that also use JAX or PyTorch/XLA are not reported: they load data with it."
    ),
    bad="""\
import tensorflow as tf

weights = tf.Variable(tf.zeros([16]))
""",
    good="""\
import jax.numpy as jnp

weights = jnp.zeros([16])
""",
    target=Target(generation="tpu7x"),
)


def find(project: Project, target: Target) -> Iterator[Finding]:
    if target.kind != "vm" or project.uses_jax or project.uses_torch_xla:
        return
    importing = _first_import(project)
    if importing is None:
        return
    module = project.script
    if target.generation and target.generation not in TENSORFLOW_GENERATIONS:
        text = f"TensorFlow does not support {target.generation}"
        hint = "Use JAX or PyTorch, or a type of another generation."
        yield finding_at(RULE, module, importing, text, hint)
        return
    if target.tensorflow is not None or not target.image:
        return
    packages = required(project.root, target.requirements, project.script.path)
    packages += [install.package for install in installed(project)]
    names = {package.name for package in packages}
    if not names & {"tensorflow-tpu", "tf-nightly-tpu"}:
        others = [package for package in packages if package.name in OTHER_TENSORFLOWS]
        for package in others:
            text = f"{package.text} does not support TPUs, and the image has no TensorFlow"
            hint = "Use tensorflow-tpu."
            place = package.path, package.line, package.column
            yield Finding(RULE.code, RULE.severity, *place, text, hint)
        if not others:
            text = f"the image {target.image} has no TensorFlow, and no requirement installs it"
            hint = "Add tensorflow-tpu to the requirements, or use an image that has TensorFlow:\n"
            hint += "    tpu: {api: tpu, runtime: auto}"
            severity = Severity.risk if target.installs_more else RULE.severity
            yield finding_at(RULE, module, importing, text, hint, severity=severity)


def _first_import(project: Project) -> ast.stmt | None:
    """The script's import of TensorFlow that always runs."""
    for statement in project.script.tree.body:
        names = [alias.name for alias in getattr(statement, "names", ())]
        if isinstance(statement, ast.ImportFrom) and not statement.level:
            names = [statement.module or ""]
        elif not isinstance(statement, ast.Import):
            continue
        if any(name.partition(".")[0] in ("tensorflow", "tf_keras") for name in names):
            return statement
    return None
