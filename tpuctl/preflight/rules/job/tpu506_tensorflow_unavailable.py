"""TPU506 tensorflow-unavailable."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from tpuctl.catalog import TENSORFLOW_GENERATIONS
from tpuctl.model.scripts.requirement_files import Requirement, allows
from tpuctl.preflight.analysis.framework_wheels import python_minors, releases_for
from tpuctl.preflight.analysis.program.source import Project
from tpuctl.preflight.analysis.requirements import installed, required_by
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
        "not support TPUs. A job that brings its own Python does not see the image's TensorFlow, "
        "and has to install one that exists for that Python. If `job.setup` or extras may install "
        "it, it is a risk. "
        "Scripts that also use JAX or PyTorch/XLA load data with it: they are only reported, as "
        "a risk, if the job brings its Python."
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
TPU_BUILDS = {"tensorflow-tpu", "tf-nightly-tpu"}
MAX_RELEASES = 3  # in a hint


def find(project: Project, target: Target) -> Iterator[Finding]:
    is_driver = not project.has_other_driver
    if target.kind != "vm" and not target.brings_python:
        return
    importing = _first_import(project)
    if importing is None and target.brings_python:
        importing = _keras_import(project, target)
    if importing is None:
        return
    module = project.script
    if is_driver and target.generation and target.generation not in TENSORFLOW_GENERATIONS:
        text = f"TensorFlow does not support {target.generation}"
        hint = "Use JAX or PyTorch, or a type of another generation."
        yield finding_at(RULE, module, importing, text, hint)
        return
    packages = required_by(project, target)
    packages += [install.package for install in installed(project)]
    if target.brings_python:
        yield from _not_brought(project, target, importing, packages, is_driver=is_driver)
    elif is_driver and target.tensorflow is None and target.image:
        yield from _not_on_image(project, target, importing, packages)


def _not_on_image(
    project: Project, target: Target, importing: ast.stmt, packages: list[Requirement]
) -> Iterator[Finding]:
    """TensorFlow for an image without it."""
    if {package.name for package in packages} & TPU_BUILDS:
        return
    others = [package for package in packages if package.name in OTHER_TENSORFLOWS]
    yield from _without_tpu(others, "the image has no TensorFlow")
    if not others:
        text = f"the image {target.image} has no TensorFlow, and no requirement installs it"
        hint = "Add tensorflow-tpu to the requirements, or use an image that has TensorFlow:\n"
        hint += "    tpu: {api: tpu, runtime: auto}"
        severity = Severity.risk if target.installs_more else RULE.severity
        yield finding_at(RULE, project.script, importing, text, hint, severity=severity)


def _not_brought(
    project: Project,
    target: Target,
    importing: ast.stmt,
    packages: list[Requirement],
    *,
    is_driver: bool,
) -> Iterator[Finding]:
    """TensorFlow for the job's own Python, which does not see that of the image."""
    needed = "tensorflow-tpu" if is_driver and target.kind == "vm" else "tensorflow"
    others = [package for package in packages if package.name in OTHER_TENSORFLOWS]
    if {package.name for package in packages} & TPU_BUILDS or (
        others and needed == "tensorflow"  # whether it exists for that Python: TPU505
    ):
        return
    because = f"{target.python_text}, which does not see the image's packages"
    if others:
        yield from _without_tpu(others, because)
        return
    text = f"no requirement installs TensorFlow, and {because}"
    is_locked = any(package.is_locked for package in packages)  # then those are all
    is_certain = (is_driver or is_locked) and not target.installs_more
    severity = RULE.severity if is_certain else Severity.risk
    hint = _which_exist(needed, target)
    yield finding_at(RULE, project.script, importing, text, hint, severity=severity)


def _without_tpu(packages: list[Requirement], because: str) -> Iterator[Finding]:
    for package in packages:
        text = f"{package.text} does not support TPUs, and {because}"
        place = package.path, package.line, package.column
        yield Finding(RULE.code, RULE.severity, *place, text, "Use tensorflow-tpu.")


def _which_exist(package: str, target: Target) -> str:
    """The releases of TensorFlow for the job's Python, the newest first; a TPU node needs that of
    its version."""
    pinned = f"=={target.tensorflow}" if target.tensorflow is not None else ""
    by_python = {
        python: [release for release in releases_for(package, python) if allows(pinned, release)]
        for python in python_minors()
    }
    for python in target.pythons:
        releases = by_python[python]
        if releases:
            listed = ", ".join(releases[:MAX_RELEASES])
            return (
                f"Add it to the requirements; for Python {python} these exist: {listed}\n"
                f"    {package}=={releases[0]}\n"
                "Or use the image's Python with its TensorFlow:\n    job: {python: image}"
            )
    having = [python for python, releases in by_python.items() if releases]
    if not having:
        return f"Add {package}{pinned} to the requirements, or use the image's Python."
    newest = having[-1]
    return (
        f"No {package}{pinned} exists for Python {target.python}. Use another Python, and add "
        f"{package}=={by_python[newest][0]} to the requirements:\n    job: {{python: '{newest}'}}"
    )


def _keras_import(project: Project, target: Target) -> ast.stmt | None:
    """The script's import of Keras that always runs, unless it may have another backend."""
    packages = required_by(project, target)
    if {"jax", "torch"} & {package.name for package in packages}:
        return None
    if any("KERAS_BACKEND" in text for text in project.texts):
        return None
    return _first_import(project, ("keras",))


def _first_import(
    project: Project, modules: Collection[str] = ("tensorflow", "tf_keras")
) -> ast.stmt | None:
    """The script's import of TensorFlow that always runs."""
    for statement in project.script.tree.body:
        if any(name.partition(".")[0] in modules for name in _modules(statement)):
            return statement
    return None


def _modules(statement: ast.stmt) -> list[str]:
    """The modules that a statement imports."""
    if isinstance(statement, ast.ImportFrom):
        return [statement.module or ""] if not statement.level else []
    return [alias.name for alias in statement.names] if isinstance(statement, ast.Import) else []
