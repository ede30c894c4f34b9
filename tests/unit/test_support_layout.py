"""The layout of the tests: helpers in one package, one polling loop, one project."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
# Programs under test, never imported.
DATA = [TESTS / "corpus" / name for name in ("labeled", "programs", "scripts")]
EDIT = re.compile(r"sys\.path(\.(append|extend|insert|pop|remove)\(|\[[^]]*\] = | \+?= )")
# Files that may edit sys.path, and how often: tests of other or isolated Pythons need it.
EDITS = {
    "corpus/observer.py": 2,
    "job/conftest.py": 2,
    "job/test_beam.py": 1,
    "shipped/test_recoverer.py": 1,
    "shipped/test_supervisor_log.py": 1,
    "unit/checks/step_values.py": 1,
}
WAITING = {"async_until", "eventually", "until", "wait_until"}
PLACES = {"PARENT", "PROJECT", "REGION", "ZONE"}


def texts() -> Iterator[tuple[str, str]]:
    for path in sorted(TESTS.rglob("*.py")):
        if not any(path.is_relative_to(folder) for folder in DATA) and path != Path(__file__):
            yield path.relative_to(TESTS).as_posix(), path.read_text("utf-8")


def test_tests_do_not_edit_import_path() -> None:
    counts = {name: len(EDIT.findall(text)) for name, text in texts()}
    assert {name: count for name, count in counts.items() if count} == EDITS


def test_only_one_polling_loop() -> None:
    violations = [
        f"{name}:{node.lineno}"
        for name, text in texts()
        if name != "support/polling.py"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in WAITING
    ]
    assert violations == [], "use tests.support.polling"


def test_project_and_zones_are_defined_once() -> None:
    violations = [
        f"{name}:{node.lineno}"
        for name, text in texts()
        if name != "support/locations.py"
        for statement in ast.parse(text).body
        if isinstance(statement, ast.Assign | ast.AnnAssign)
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in PLACES
    ]
    assert violations == [], (
        "use tests.support.locations, or a more specific name for another value"
    )


def test_no_helper_has_name_of_a_library() -> None:
    helpers = {path.stem for path in (TESTS / "support").glob("*.py")} - {"__init__"}
    assert helpers
    assert helpers.isdisjoint({*sys.stdlib_module_names, *packages_distributions()})
