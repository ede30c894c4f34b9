"""What the runtime's TensorFlow has (TPU405, TPU406, TPU503, TPU504)."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tpuctl.preflight.analysis.constants import Constants
from tpuctl.preflight.analysis.functions import is_legacy_keras
from tpuctl.preflight.analysis.guards import is_guarded
from tpuctl.preflight.analysis.locations import found_at
from tpuctl.preflight.analysis.source import Module, Project
from tpuctl.preflight.analysis.syntax import dotted
from tpuctl.preflight.findings import Edit, Finding, Rule, Severity, Target
from tpuctl.preflight.rules import pins

__all__ = ["RULES", "find"]

RULES = (
    Rule(
        "TPU405",
        "strategy-of-another-version",
        Severity.error,
        "Strategies have other names in other versions of TensorFlow.",
        "TensorFlow 2.1 has `tf.distribute.experimental.TPUStrategy` and its "
        "`experimental_run_v2` alone. `run` came with 2.2, `tf.distribute.TPUStrategy` with 2.3, "
        "and `experimental_run_v2` was gone with 2.4.",
        """import tensorflow as tf

strategy = tf.distribute.get_strategy()
strategy.experimental_run_v2(lambda: tf.constant(1.0))
""",
        """import tensorflow as tf

strategy = tf.distribute.get_strategy()
strategy.run(lambda: tf.constant(1.0))
""",
        Target(tensorflow="2.18.0"),
    ),
    Rule(
        "TPU406",
        "name-of-another-version",
        Severity.error,
        "The runtime's TensorFlow no longer has, or not yet, what the script asks for.",
        "The version of TensorFlow is the runtime's: each has names that others lack, and a "
        "script that asks for one stops with an AttributeError or an ImportError. What stands "
        "behind `hasattr`, a comparison of versions or `except AttributeError` is left alone.",
        """import tensorflow as tf

optimizer = tf.keras.optimizers.experimental.AdamW()
""",
        """import tensorflow as tf

optimizer = tf.keras.optimizers.AdamW()
""",
        Target(tensorflow="2.18.0"),
    ),
    Rule(
        "TPU503",
        "tensorflow-pinned",
        Severity.error,
        "TensorFlow is pinned to a version that the runtime does not have.",
        "The image's TensorFlow is built for the TPU, and jobs keep it: pip is told its version "
        "as a constraint, and refuses a requirements file that asks for another, before the job "
        "begins. What the script itself installs is under no such constraint: it takes the place "
        "of the image's TensorFlow and finds no TPU.",
        """import subprocess
import sys

subprocess.run([sys.executable, "-m", "pip", "install", "tensorflow==2.12.0"], check=True)
""",
        """import subprocess
import sys

subprocess.run([sys.executable, "-m", "pip", "install", "tensorflow-datasets"], check=True)
""",
        Target(tensorflow="2.18.0"),
    ),
    Rule(
        "TPU504",
        "tensorflow-replaced",
        Severity.risk,
        "Another build of TensorFlow takes the place of the image's, and finds no TPU.",
        "A requirement `tensorflow` without a version changes nothing: jobs keep the image's. But "
        "`tensorflow-cpu`, `tensorflow-gpu`, `tf-nightly` and their like are other packages with "
        "the same modules: pip puts them before the image's, and what they bring knows no TPU. "
        "So does `pip install --upgrade tensorflow` in the script.",
        """import subprocess
import sys

subprocess.run([sys.executable, "-m", "pip", "install", "tensorflow-cpu"], check=True)
""",
        """import subprocess
import sys

subprocess.run([sys.executable, "-m", "pip", "install", "tensorflow"], check=True)
""",
        Target(tensorflow="2.18.0"),
    ),
)

STRATEGY = "tensorflow.distribute.Strategy."
STRATEGIES = {"tensorflow.distribute.TPUStrategy", f"{STRATEGY}run"}
STRATEGIES |= {f"{STRATEGY}experimental_run_v2"}
OLD_STRATEGY = "tensorflow.distribute.experimental.TPUStrategy"
# Methods that nothing else is called; the others may be anybody's.
PLAIN_METHODS = {
    *("experimental_run_v2", "experimental_make_numpy_dataset", "fit_generator"),
    *("evaluate_generator", "predict_generator", "predict_classes", "predict_proba", "to_yaml"),
    *("make_one_shot_iterator", "make_initializable_iterator"),
    "distribute_datasets_from_function",
}
Version = tuple[int, ...]


@dataclass(frozen=True)
class _Name:
    """Something public of TensorFlow that not all versions have."""

    name: str
    since: Version | None
    until: Version | None  # the first without it
    is_method: bool
    is_legacy: bool
    instead: str

    def is_in(self, version: Version) -> bool:
        return (self.since or (0,)) <= version[:2] and (
            self.until is None or version[:2] < self.until
        )


@cache
def _table() -> dict[str, _Name]:
    """By name, as `Names.of` has them."""
    text = Path(__file__).with_name("tensorflow_names.toml").read_text("utf-8")
    return {
        one["name"]: _Name(
            one["name"],
            _version(one.get("since")),
            _version(one.get("until")),
            one.get("method", False),
            one.get("legacy", False),
            one.get("instead", ""),
        )
        for one in tomllib.loads(text)["name"]
    }


def find(project: Project, target: Target) -> Iterator[Finding]:
    """Yield what breaks these rules."""
    yield from pins.find(project, target)
    for module in project:
        if not _is_of_tensorflow(module):
            continue
        private = _private(module)
        for node in module.nodes:
            if isinstance(node, (ast.Attribute, ast.Import, ast.ImportFrom)):
                for one, shown in _named(project, module, node):
                    if shown.partition(".")[0] not in private:
                        yield from _judge(project, module, node, one, shown, target)


def _is_of_tensorflow(module: Module) -> bool:
    return any(name.startswith(("tensorflow", "keras")) for name in module.names.known.values())


def _private(module: Module) -> set[str]:
    """Names for parts of TensorFlow that are not public, of which the table knows nothing."""
    return {
        alias.asname or alias.name.partition(".")[0]
        for node in module.nodes
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
        if f"{getattr(node, 'module', None) or alias.name}.".startswith("tensorflow.python.")
        and (alias.asname or isinstance(node, ast.ImportFrom))
    }


Naming = ast.Attribute | ast.Import | ast.ImportFrom


def _named(project: Project, module: Module, node: Naming) -> Iterator[tuple[str, str]]:
    """Names that the table may have, and how they are written."""
    if isinstance(node, ast.Import):
        yield from ((one.name, one.name) for one in node.names)
    elif isinstance(node, ast.ImportFrom):
        if not node.level and (node.module or "").startswith("tensorflow"):
            yield from ((f"{node.module}.{one.name}", one.name) for one in node.names)
    elif not isinstance(module.parents.get(node), ast.Attribute) and isinstance(node.ctx, ast.Load):
        name, written = module.names.of(node), dotted(node) or ""
        if name is not None:
            yield name, written
        elif isinstance(module.parents.get(node), ast.Call):
            yield from _method(project, module, node)


def _method(project: Project, module: Module, node: ast.Attribute) -> Iterator[tuple[str, str]]:
    """The table's name of a method, where what it is called on is what the table means."""
    is_strategy = node.attr == "run" and _is_strategy(project, module, node.value)
    is_plain = node.attr in PLAIN_METHODS and not _is_defined(project, node.attr)
    if is_plain or is_strategy:
        for name in _table():
            if name.endswith(f".{node.attr}") and _table()[name].is_method:
                yield name, node.attr


def _is_defined(project: Project, name: str) -> bool:
    """Whether the project has a method of that name itself."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return any(
        isinstance(node, kinds) and node.name == name for module in project for node in module.nodes
    )


def _is_strategy(project: Project, module: Module, node: ast.expr) -> bool:
    given = Constants.of(project).given(module, node)
    called = (module.names.called(one) or "" for one in given if one is not None)
    return (dotted(node) or "").endswith("strategy") or any(
        name.startswith("tensorflow.distribute.") and name.endswith("Strategy") for name in called
    )


def _known(name: str, version: Version | None) -> _Name | None:
    """The table's line of a name, or of what it is a part of: the first that a version lacks."""
    parts = name.split(".")
    several = [".".join(parts[:count]) for count in range(2, len(parts) + 1)]
    found = [_table()[one] for one in several if one in _table()]
    missing = (one for one in found if version is not None and not one.is_in(version))
    return next(missing, found[-1] if found else None)


def _is_told_at_import(module: Module, node: Naming, one: _Name) -> bool:
    """Whether what is missing is what was imported already."""
    if not isinstance(node, ast.Attribute):
        return False
    first = (dotted(node) or "").partition(".")[0]
    imported = module.names.known.get(first, "")
    return f"{imported}.".startswith(f"{one.name}.")


def _judge(
    project: Project, module: Module, node: Naming, name: str, shown: str, target: Target
) -> Iterator[Finding]:
    if name == OLD_STRATEGY:
        yield from _old_strategy(module, node, target)
        return
    version = target.version
    one = _known(name, version)
    if one is None or _is_told_at_import(module, node, one) or is_guarded(module, node):
        return
    code = "TPU405" if one.name in STRATEGIES else "TPU406"
    edits = _edits(module, node, one.name)
    hint = f"Write {one.instead}." if one.instead else ""
    if version is None or one.is_in(version):
        if one.name == f"{STRATEGY}experimental_run_v2" and (version is None or version >= (2, 2)):
            text = "`experimental_run_v2` is gone from TensorFlow 2.4 on"
            yield found_at(code, Severity.risk, module, node, text, hint, edits)
        return
    if one.until is not None and version[:2] >= one.until:
        if one.is_legacy and is_legacy_keras(project, one.name, target):
            return
        ended = ".".join(str(part) for part in one.until)
        story = "only TensorFlow 1 has it" if one.until == (2, 0) else f"it was gone with {ended}"
    else:
        story = f"it came with {'.'.join(str(part) for part in one.since or ())}"
    text = f"TensorFlow {target.tensorflow} has no `{shown}`: {story}"
    yield found_at(code, Severity.error, module, node, text, hint, edits)


def _old_strategy(module: Module, node: Naming, target: Target) -> Iterator[Finding]:
    version = target.version
    if version is None or version < (2, 3) or is_guarded(module, node):
        return
    text = "`tf.distribute.experimental.TPUStrategy` is deprecated since TensorFlow 2.3"
    parent = module.parents.get(node)
    edits: list[Edit] = []
    if isinstance(node, ast.Attribute) and isinstance(parent, ast.Call):
        names = {one.arg for one in parent.keywords}
        inner = node.value
        if names <= {"tpu_cluster_resolver"} and isinstance(inner, ast.Attribute):
            edits = [_cut(module, inner.value, node, ".TPUStrategy")]
    hint = "Write tf.distribute.TPUStrategy."
    yield found_at("TPU405", Severity.risk, module, node, text, hint, edits)


def _edits(module: Module, node: Naming, name: str) -> list[Edit]:
    if isinstance(node, ast.Attribute) and name == f"{STRATEGY}experimental_run_v2":
        return [_cut(module, node.value, node, ".run")]
    return []


def _cut(module: Module, start: ast.expr, end: ast.expr, text: str) -> Edit:
    """Another text for what stands between the ends of two parts."""
    line, offset = start.end_lineno or 1, start.end_col_offset or 0
    end_line, end_offset = end.end_lineno or 1, end.end_col_offset or 0
    column, end_column = module.column(line, offset), module.column(end_line, end_offset)
    return Edit(module.path, line, column, end_line, end_column, text)


def _version(text: str | None) -> Version | None:
    return None if text is None else tuple(int(part) for part in text.split("."))
