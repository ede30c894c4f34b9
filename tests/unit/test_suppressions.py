"""Comments that suppress findings."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpuctl.preflight.analysis.program.source import load
from tpuctl.preflight.check import check_project
from tpuctl.preflight.findings import Finding, Severity, Target
from tpuctl.preflight.suppressions import Suppressions


def suppressions_in(folder: Path, text: str) -> Suppressions:
    (folder / "train.py").write_text(text, "utf-8")
    return Suppressions.from_module(load(folder / "train.py").script)


def finding(line: int, code: str = "TPU000") -> Finding:
    return Finding(code, Severity.error, Path("train.py"), line, 0, "something")


CALL = "x = print(\n    1,{}\n    2,\n){}\n"


@pytest.mark.parametrize(
    ("text", "line", "suppressed"),
    [
        ("x = 1  # tpuctl: ignore[TPU000]\n", 1, True),
        ("x = 1  # tpuctl:ignore[ TPU101 , TPU000 ]\n", 1, True),
        ("x = 1  # tpuctl: ignore[tpu000]\n", 1, True),
        ("x = 1  # tpuctl: ignore[TPU0]\n", 1, True),
        ("x = 1  # tpuctl: ignore[not-python]\n", 1, True),
        ("x = 1  # tpuctl: ignore\n", 1, True),
        ("x = 1  # noqa: E501  # tpuctl: ignore[TPU000]\n", 1, True),
        ("x = 1  # tpuctl: ignore[TPU000] its shape never changes\n", 1, True),
        ("x = 1  # tpuctl: ignore[TPU999]\n", 1, False),
        ("x = 1  # tpuctl: ignore[]\n", 1, False),
        ("x = 1  # tpuctl: ignore[TPU000\n", 1, False),
        ("x = 1  # ignore[TPU000]\n", 1, False),
        ("x = 1\ny = 2  # tpuctl: ignore[TPU000]\n", 1, False),
        ("# tpuctl: ignore[TPU000]\nx = 1\n", 2, False),
        ("x = '# tpuctl: ignore[TPU000]'\n", 1, False),
        ('x = """\n# tpuctl: ignore[TPU000]\n"""\n', 2, False),
        # A statement over several lines: its first line, its last line, and the reported line.
        (CALL.format("", "  # tpuctl: ignore[TPU000]"), 1, True),
        (CALL.format("", "  # tpuctl: ignore[TPU000]"), 3, True),
        (CALL.format("  # tpuctl: ignore[TPU000]", ""), 2, True),
        (CALL.format("  # tpuctl: ignore[TPU000]", ""), 3, False),
        ("x = [  # tpuctl: ignore[TPU000]\n    1,\n]\n", 2, True),
        # For a compound statement, the part before its body.
        ("def f(\n    a,\n):  # tpuctl: ignore[TPU000]\n    return a\n", 1, True),
        ("def f(\n    a,\n):  # tpuctl: ignore[TPU000]\n    return a\n", 4, False),
        ("def f(\n    a,\n):  # tpuctl: ignore[TPU000]\n    # more\n\n    return a\n", 1, True),
        ("@print\ndef f():  # tpuctl: ignore[TPU000]\n    @print\n    def g(): ...\n", 1, True),
        ("if x:  # tpuctl: ignore[TPU000]\n    y = 1\nelse:\n    y = 2\n", 2, False),
        ("if x:\n    y = 1  # tpuctl: ignore[TPU000]\n", 1, False),
        ("match x:  # tpuctl: ignore[TPU000]\n    case 1:\n        y = 1\n", 1, True),
        # Whole files.
        ("# tpuctl: ignore-file[TPU000]\nx = 1\n\n\ny = 2\n", 5, True),
        ("#!/usr/bin/python3\n'''What it is.'''\n# tpuctl: ignore-file\nx = 1\n", 4, True),
        ("# tpuctl: ignore-file[TPU999]\nx = 1\n", 2, False),
        ("x = 1\n# tpuctl: ignore-file[TPU000]\ny = 2\n", 3, False),
        # A form feed does not end a line.
        ("x = 1\n\x0c\ny = 2  # tpuctl: ignore[TPU000]\n", 3, True),
    ],
)
def test_suppression_scope(tmp_path: Path, text: str, line: int, suppressed: bool) -> None:
    assert suppressions_in(tmp_path, text).covers(finding(line)) is suppressed


def test_other_rules_are_still_reported(tmp_path: Path) -> None:
    suppressions = suppressions_in(tmp_path, "x = 1  # tpuctl: ignore[TPU000]\n")
    assert not suppressions.covers(finding(1, "TPU101"))


@pytest.mark.parametrize(
    ("comment", "words"),
    [
        ("x = 1  # tpuctl: ignore[TPU999]", "TPU999"),
        ("x = 1  # tpuctl: ignore[TPU000, boolean-musk]", "boolean-musk"),
        ("x = 1  # tpuctl: ignore[TPU000", "]"),
        ("x = 1  # tpuctl: ignore[]", "names no rule"),
        ("x = 1  # tpuctl: ignroe[TPU000]", "ignroe"),
        ("x = 1  # tpuctl: [TPU000]", "unknown comment"),
        ("# tpuctl: ignore[TPU000]\nx = 1", "end of a line"),
        ("x = 1\n# tpuctl: ignore-file[TPU000]", "before any code"),
    ],
)
def test_ineffective_comments_are_reported(tmp_path: Path, comment: str, words: str) -> None:
    (note,) = suppressions_in(tmp_path, f"{comment}\n").notes
    assert words in note.message
    has_effect = "TPU000, " in comment
    assert ("no rule is suppressed" in note.message) is not has_effect


@pytest.mark.parametrize(
    "comment",
    [
        "x = 1  # tpuctl: ignore[TPU000]",
        "x = 1  # tpuctl: see docs/guides/before-you-pay.md",
        "x = 1  # run with tpuctl: it checks this first",
        "x = '# tpuctl: ignroe[TPU000]'",
    ],
)
def test_other_comments_are_ignored(tmp_path: Path, comment: str) -> None:
    assert suppressions_in(tmp_path, f"{comment}\n").notes == []


def test_imported_file_has_its_suppressions(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import parts\n", "utf-8")
    (tmp_path / "parts.py").write_text("x = 1  # tpuctl: ignore[TPU999]\n", "utf-8")
    report = check_project(tmp_path / "train.py", Target())
    assert [(note.path.name, note.line) for note in report.notes] == [("parts.py", 1)]
