"""TensorFlow 2 names that are missing from some versions, and a project's uses of them.

The table is in `versioned_names.json`. An entry covers all names below it: tensorflow.estimator
also covers tensorflow.estimator.Estimator.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tpuctl.preflight.analysis.program.functions import is_legacy_keras
from tpuctl.preflight.analysis.program.source import Module, Project
from tpuctl.preflight.analysis.program.syntax import dotted, identifiers_in, words_of
from tpuctl.preflight.analysis.values.host_code import HostCode
from tpuctl.preflight.findings import Target

STRATEGY = "tensorflow.distribute.Strategy."
OLD_STRATEGY = "tensorflow.distribute.experimental.TPUStrategy"
STRATEGIES = {"tensorflow.distribute.TPUStrategy", f"{STRATEGY}run"}
STRATEGIES |= {f"{STRATEGY}experimental_run_v2"}
# Methods identified by name alone; other libraries do not have them.
UNIQUE_METHODS = {
    *("experimental_run_v2", "experimental_make_numpy_dataset", "fit_generator"),
    *("evaluate_generator", "predict_generator", "predict_classes", "predict_proba", "to_yaml"),
    *("make_one_shot_iterator", "make_initializable_iterator"),
    "distribute_datasets_from_function",
}
CAUGHT_ERRORS = {
    "AttributeError",
    "ImportError",
    "ModuleNotFoundError",
    "Exception",
    "BaseException",
}
VERSION_WORDS = {"version", "versions", "hasattr", "getattr"}

Naming = ast.Attribute | ast.Import | ast.ImportFrom
Version = tuple[int, ...]


class VersionedName(NamedTuple):
    """A public TensorFlow name that is missing from some versions."""

    name: str
    since: Version | None
    until: Version | None  # the first version without it
    is_method: bool
    is_legacy: bool
    replacement: str

    def is_in(self, version: Version) -> bool:
        return (self.since or (0,)) <= version[:2] and (
            self.until is None or version[:2] < self.until
        )


def read_names() -> dict[str, dict[str, Any]]:
    """The rows of the table by qualified name; it describes their keys."""
    text = Path(__file__).with_name("versioned_names.json").read_text("utf-8")
    return {
        name: row for group in json.loads(text)["names"].values() for name, row in group.items()
    }


@cache
def _table() -> dict[str, VersionedName]:
    """Entries by qualified name, as returned by `Names.of`."""
    return {
        name: VersionedName(
            name,
            _version(row.get("since")),
            _version(row.get("until")),
            row.get("method", False),
            row.get("legacy", False),
            row.get("instead", ""),
        )
        for name, row in read_names().items()
    }


class Use(NamedTuple):
    """A use of a TensorFlow name."""

    module: Module
    node: Naming
    name: str  # qualified
    text: str  # as written


def find_uses(project: Project) -> list[Use]:
    """All uses of TensorFlow names in a project, cached."""
    if "tensorflow names" not in project.cache:
        project.cache["tensorflow names"] = list(_uses(project))
    uses: list[Use] = project.cache["tensorflow names"]
    return uses


def _uses(project: Project) -> Iterator[Use]:
    for module in project:
        if not _is_of_tensorflow(module):
            continue
        private = _private(module)
        for node in module.of_types(ast.Attribute, ast.Import, ast.ImportFrom):
            for name, text in _names_at(project, module, node):
                if text.partition(".")[0] not in private:
                    yield Use(module, node, name, text)


def table_entry(use: Use, target: Target) -> VersionedName | None:
    """The entry for a name or its parent, preferring the outermost that the target lacks.

    None if the import is reported instead, or the use is guarded.
    """
    entry = _entry_of(use.name, target.version)
    if entry is None or _is_reported_at_import(use.module, use.node, entry):
        return None
    return None if is_guarded(use.module, use.node) else entry


def missing_message(project: Project, use: Use, entry: VersionedName, target: Target) -> str:
    """The message for a name that the target's TensorFlow lacks; empty if it has the name, or the
    project uses Keras 2, which has it."""
    version = target.version
    if version is None or entry.is_in(version):
        return ""
    if entry.until is not None and version[:2] >= entry.until:
        if entry.is_legacy and is_legacy_keras(project, entry.name, target):
            return ""
        last_version = ".".join(str(part) for part in entry.until)
        reason = (
            "only TensorFlow 1 has it" if entry.until == (2, 0) else f"removed in {last_version}"
        )
    else:
        reason = f"added in {'.'.join(str(part) for part in entry.since or ())}"
    return f"TensorFlow {target.tensorflow} has no `{use.text}`: {reason}"


def _is_of_tensorflow(module: Module) -> bool:
    return any(name.startswith(("tensorflow", "keras")) for name in module.names.imports.values())


def _private(module: Module) -> set[str]:
    """Names imported from `tensorflow.python`, which the table does not cover."""
    return {
        alias.asname or alias.name.partition(".")[0]
        for node in module.of_types(ast.Import, ast.ImportFrom)
        for alias in node.names
        if f"{getattr(node, 'module', None) or alias.name}.".startswith("tensorflow.python.")
        and (alias.asname or isinstance(node, ast.ImportFrom))
    }


def _names_at(project: Project, module: Module, node: Naming) -> Iterator[tuple[str, str]]:
    """Qualified TensorFlow names at a node, and the names as written."""
    if isinstance(node, ast.Import):
        yield from ((alias.name, alias.name) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        if not node.level and (node.module or "").startswith("tensorflow"):
            yield from ((f"{node.module}.{alias.name}", alias.name) for alias in node.names)
    elif not isinstance(module.parents.get(node), ast.Attribute) and isinstance(node.ctx, ast.Load):
        name = module.names.of(node)
        if name is not None:
            yield name, dotted(node) or ""
        elif isinstance(module.parents.get(node), ast.Call):
            yield from _method(project, module, node)


def _method(project: Project, module: Module, node: ast.Attribute) -> Iterator[tuple[str, str]]:
    """The entry of a method, if it is called on an object of the entry's class."""
    is_strategy = node.attr == "run" and _is_strategy(project, module, node.value)
    is_plain = node.attr in UNIQUE_METHODS and not _is_defined(project, node.attr)
    if is_plain or is_strategy:
        for name in _table():
            if name.endswith(f".{node.attr}") and _table()[name].is_method:
                yield name, node.attr


def _is_defined(project: Project, name: str) -> bool:
    """Whether the project defines a method of that name."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return any(node.name == name for module in project for node in module.of_types(*kinds))


def _is_strategy(project: Project, module: Module, node: ast.expr) -> bool:
    values = HostCode.of(project).assigned_values(module, node)
    called = (module.names.called(value) or "" for value in values if value is not None)
    return (dotted(node) or "").endswith("strategy") or any(
        name.startswith("tensorflow.distribute.") and name.endswith("Strategy") for name in called
    )


@cache
def _entry_of(name: str, version: Version | None) -> VersionedName | None:
    """The entry for a name or its parent, preferring the outermost that a version lacks."""
    parts = name.split(".")
    prefixes = [".".join(parts[:count]) for count in range(2, len(parts) + 1)]
    entries = [_table()[prefix] for prefix in prefixes if prefix in _table()]
    missing = (entry for entry in entries if version is not None and not entry.is_in(version))
    return next(missing, entries[-1] if entries else None)


def _is_reported_at_import(module: Module, node: Naming, entry: VersionedName) -> bool:
    """Whether the missing name is part of the import, where it is reported."""
    if not isinstance(node, ast.Attribute):
        return False
    first = (dotted(node) or "").partition(".")[0]
    imported = module.names.imports.get(first, "")
    return f"{imported}.".startswith(f"{entry.name}.")


def _version(text: str | None) -> Version | None:
    return None if text is None else tuple(int(part) for part in text.split("."))


# Guards -------------------------------------------------------------------------------------


def is_guarded(module: Module, node: ast.AST) -> bool:
    """Whether the code handles the absence of a name.

    That is: in a `try` that catches the error, or in a branch that tests a version or the
    existence of the name.
    """
    child = node
    for ancestor in module.ancestors(node):
        if isinstance(ancestor, ast.Try) and child in ancestor.body and _catches(ancestor):
            return True
        if (
            isinstance(ancestor, ast.Call)
            and isinstance(ancestor.func, ast.Name)
            and ancestor.func.id == "getattr"
        ):
            return True
        if isinstance(ancestor, ast.ExceptHandler) and _names(ancestor) & CAUGHT_ERRORS:
            return True
        if isinstance(ancestor, (ast.If, ast.IfExp)) and _tests_version(module, ancestor.test):
            return child is not ancestor.test or "hasattr" in identifiers_in(ancestor.test)
        if isinstance(ancestor, ast.BoolOp) and _tests_version(module, ancestor.values[0]):
            return child is not ancestor.values[0]
        if isinstance(ancestor, (ast.FunctionDef, ast.AsyncFunctionDef)) and _returns_early(
            module, ancestor, node
        ):
            return True
        child = ancestor
    return False


def _catches(node: ast.Try) -> bool:
    return any(handler.type is None or _names(handler) & CAUGHT_ERRORS for handler in node.handlers)


def _names(handler: ast.ExceptHandler) -> set[str]:
    if handler.type is None:
        return CAUGHT_ERRORS
    parts = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return {part.id for part in parts if isinstance(part, ast.Name)}


def _tests_version(module: Module, condition: ast.expr) -> bool:
    """Whether a condition tests a version or the existence of a name."""
    if not VERSION_WORDS.isdisjoint(words_of(identifiers_in(condition))):
        return True
    # A variable with such a result: `HAS_RUN = hasattr(strategy, "run")`.
    for part in ast.walk(condition):
        if isinstance(part, ast.Name):
            for other in module.of_types(ast.Assign):
                if _assigns(other, part.id):
                    words = words_of(identifiers_in(other.value))
                    if not VERSION_WORDS.isdisjoint(words):
                        return True
    return False


def _assigns(node: ast.Assign, name: str) -> bool:
    return any(isinstance(target, ast.Name) and target.id == name for target in node.targets)


def _returns_early(module: Module, function: ast.AST, node: ast.AST) -> bool:
    """Whether an earlier test returns first: `if hasattr(…): return …`."""
    line = getattr(node, "lineno", 0)
    return any(
        isinstance(statement, ast.If)
        and statement.lineno < line
        and isinstance(statement.body[-1], (ast.Return, ast.Raise))
        and _tests_version(module, statement.test)
        for statement in getattr(function, "body", [])
    )
