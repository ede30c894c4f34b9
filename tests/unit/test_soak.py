"""What the targets of the Makefile and the continuous integration select."""

from __future__ import annotations

import subprocess
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent


def test_make_targets_select_expected_tests() -> None:
    expected = {
        "test": '-m "not soak and not clients"',
        "soak": "-m soak",
    }
    printed = subprocess.run(
        ["make", "--dry-run", *expected], cwd=ROOT, capture_output=True, text=True, check=True
    )
    lines = [line for line in printed.stdout.splitlines() if "/pytest " in line]
    for selection, line in zip(expected.values(), lines, strict=True):
        assert f"{selection} " in f"{line} "
        assert not {"-k", "--deselect", "--ignore"} & set(line.split())


def test_nothing_else_deselects_tests() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert [line for line in lines if line.startswith("make ")] == [
        "make test || make again",
        "make soak MINUTES=$((60 - SECONDS / 60)) || make again",  # what it leaves out is named
    ]
    assert "rev-list" not in (ROOT / "Makefile").read_text("utf-8")
    for path in TESTS.rglob("conftest.py"):
        assert "deselected" not in path.read_text("utf-8"), path
