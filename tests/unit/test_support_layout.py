"""The layout of the tests: helpers in one package, one polling loop, one project."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
# Programs under test, never imported.
DATA = [TESTS / "corpus" / name for name in ("labeled", "programs", "scripts")]
EDIT = re.compile(r"sys\.path(\.(append|extend|insert|pop|remove)\(|\[[^]]*\] = | \+?= )")
# Files that may edit sys.path, and how often: tests of other or isolated Pythons need it.
EDITS = {
    "corpus/observer.py": 2,
    "job/test_beam.py": 1,
    "rehearsal/observed_script.py": 1,
    "shipped/test_recoverer.py": 1,
    "shipped/test_supervisor_log.py": 1,
    "support/forked_scripts.py": 1,
    "support/gcloud_server.py": 1,
    "support/machine_folder.py": 1,
    "unit/checks/step_values.py": 1,
}
WAITING = {"async_until", "eventually", "until", "wait_until"}
PLACES = {"PARENT", "PROJECT", "REGION", "ZONE"}


def texts() -> Iterator[tuple[str, str]]:
    for path in sorted(TESTS.rglob("*.py")):
        if not any(path.is_relative_to(folder) for folder in DATA) and path != Path(__file__):
            yield path.relative_to(TESTS).as_posix(), path.read_text("utf-8")


def lines_with(pattern: re.Pattern[str], home: str) -> list[str]:
    """Where it matches, except in the module that it belongs to."""
    return [
        f"{name}:{text.count(chr(10), 0, match.start()) + 1}"
        for name, text in texts()
        if name != home
        for match in pattern.finditer(text)
    ]


def test_modules_of_support_are_shared() -> None:
    definition = re.compile(rf"(?m)^[ ]*(?:async )?def (?:{'|'.join(WAITING)})\(")
    assert lines_with(definition, "support/polling.py") == [], "use tests.support.polling"
    assert definition.search((TESTS / "support" / "polling.py").read_text("utf-8"))
    assignment = re.compile(rf"(?m)^(?:\w+, )*(?:{'|'.join(PLACES)})\b(?:, \w+)*(?:: [^=\n]+)? = ")
    assert lines_with(assignment, "support/locations.py") == [], (
        "use tests.support.locations, or a more specific name for another value"
    )
    assert assignment.search((TESTS / "support" / "locations.py").read_text("utf-8"))
    helpers = {path.stem for path in (TESTS / "support").glob("*.py")} - {"__init__"}
    assert helpers
    assert helpers.isdisjoint({*sys.stdlib_module_names, *packages_distributions()})
    counts = {name: len(EDIT.findall(text)) for name, text in texts()}
    assert {name: count for name, count in counts.items() if count} == EDITS


def test_long_files_start_first(request: pytest.FixtureRequest) -> None:
    """In the order of this run, whatever was picked for it."""
    are_long = [bool(item.get_closest_marker("long")) for item in request.session.items]
    assert are_long == sorted(are_long, reverse=True)
