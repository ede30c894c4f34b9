"""The soak tests: a fixed part at every commit, all of them before a release."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
SOAK, RELEASE = "pytest.mark.soak", "pytest.mark.release"


def marked_together(tree: ast.AST) -> Iterator[Sequence[ast.expr]]:
    """The marks of one test: its decorators, or the items of a tuple."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.decorator_list
        elif isinstance(node, ast.Tuple):
            yield node.elts


def is_release(mark: ast.expr) -> bool:
    return ast.unparse(mark).startswith(RELEASE)


def test_manual_tests_have_reason() -> None:
    count = written = 0
    for path in TESTS.rglob("test_*.py"):
        text = path.read_text("utf-8")
        if path == Path(__file__) or RELEASE not in text:
            continue
        written += text.count(RELEASE)
        for marks in marked_together(ast.parse(text)):
            for mark in filter(is_release, marks):
                count += 1
                assert isinstance(mark, ast.Call), f"{path}:{mark.lineno}: no reason"
                [reason] = mark.args
                assert len(ast.literal_eval(reason).split()) > 3, f"{path}:{mark.lineno}: {reason}"
                assert SOAK in map(ast.unparse, marks), f"{path}:{mark.lineno}: not marked as soak"
    assert count == written > 20


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("test", '"not soak and not clients"'),
        ("ci-soak", '"soak and not release"'),
        ("soak", "soak"),
    ],
)
def test_make_target_selects_expected_tests(target: str, expected: str) -> None:
    printed = subprocess.run(
        ["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=True
    )
    [line] = [line for line in printed.stdout.splitlines() if "/pytest " in line]
    assert f"-m {expected}" in line
    assert not {"-k", "--deselect", "--ignore"} & set(line.split())


def test_nothing_else_deselects_tests() -> None:
    assert (ROOT / ".ci" / "run").read_text().splitlines()[-2:] == ["make test", "make ci-soak"]
    assert "rev-list" not in (ROOT / "Makefile").read_text("utf-8")
    for path in TESTS.rglob("conftest.py"):
        assert "deselected" not in path.read_text("utf-8"), path
