"""Fixes of findings: combined, verified and written."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import strategies as st

from tests.support.properties import given, settings
from tpuctl.preflight.findings import Edit, Finding, Severity
from tpuctl.preflight.fixes import diff, propose, write


def finding(path: Path, *edits: tuple[int, int, int, int, str], code: str = "TPU201") -> Finding:
    file_edits = tuple(Edit(path, *edit) for edit in edits)
    return Finding(
        code,
        Severity.cost,
        path,
        file_edits[0].line,
        file_edits[0].column,
        "something",
        "",
        file_edits,
    )


def fixed(path: Path, *findings: Finding) -> str:
    """Apply the fixes; returns the rewritten text."""
    for rewrite in propose(findings).rewrites:
        assert write(rewrite) == ""
    return path.read_bytes().decode("utf-8")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "train.py"


def test_edits_count_characters_and_are_applied_once(script: Path) -> None:
    script.write_text("data = data.batch(8)\nprint(data)\n", "utf-8")
    fix = finding(script, (1, 19, 1, 19, ", drop_remainder=True"))
    assert fixed(script, fix) == "data = data.batch(8, drop_remainder=True)\nprint(data)\n"
    script.write_text("이름 = '한국어'; x = f(1)\n", "utf-8")
    column = "이름 = '한국어'; x = f(1".index("1")
    assert fixed(script, finding(script, (1, column, 1, column + 1, "2"))).endswith("f(2)\n")
    script.write_text("x = f(1)\ny = f(2)\n", "utf-8")
    line = (1, 0, 1, 0, "import tensorflow as tf\n")
    fix = finding(script, line, (1, 4, 1, 5, "tf.f"))
    other = finding(script, line, (2, 4, 2, 5, "tf.f"))
    assert fixed(script, fix, other) == "import tensorflow as tf\nx = tf.f(1)\ny = tf.f(2)\n"


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_line_endings_are_kept(script: Path, newline: str) -> None:
    text = newline.join(["import os", "x = f(1)", "y = 2", ""])
    script.write_bytes(text.encode())
    fix = finding(script, (2, 6, 2, 7, "1,\n      2"))
    expected = newline.join(["import os", "x = f(1,", "      2)", "y = 2", ""])
    assert fixed(script, fix) == expected
    assert script.read_bytes() == expected.encode()


@pytest.mark.parametrize(
    ("encoding", "head"),
    [
        ("utf-8-sig", ""),
        ("euc-kr", "# -*- coding: euc-kr -*-\n"),
        ("latin-1", "# coding: latin-1\n"),
    ],
)
def test_encoding_is_kept(script: Path, encoding: str, head: str) -> None:
    word = "é" if encoding == "latin-1" else "한국어"
    script.write_bytes(f"{head}x = f('{word}', 1)\n".encode(encoding))
    line = head.count("\n") + 1
    column = len(f"x = f('{word}', ")
    assert [
        write(rewrite)
        for rewrite in propose([finding(script, (line, column, line, column + 1, "2"))]).rewrites
    ] == [""]
    assert script.read_bytes() == f"{head}x = f('{word}', 2)\n".encode(encoding)


def test_edits_that_cannot_be_made_are_skipped(script: Path) -> None:
    before = b"# coding: latin-1\nx = '\xe9'\n"
    script.write_bytes(before)
    fixes = propose([finding(script, (2, 5, 2, 6, "한"))])
    assert (fixes.rewrites, len(fixes.skipped)) == ((), 1)
    script.write_text("x = f(1)\ny = g(2)\n", "utf-8")
    breaking = finding(script, (1, 7, 1, 8, ""))
    good = finding(script, (2, 6, 2, 7, "3"))
    fixes = propose([breaking, good])
    assert [skipped.finding for skipped in fixes.skipped] == [breaking]
    assert fixes.findings == (good,)
    assert fixed(script, breaking, good) == "x = f(1)\ny = g(3)\n"
    script.write_text("x = f(1)\n", "utf-8")
    fixes = propose([finding(script, (9, 0, 9, 1, "")), finding(script, (1, 50, 1, 51, ""))])
    assert (fixes.rewrites, len(fixes.skipped)) == ((), 2)


def test_overlapping_edits_are_skipped(script: Path) -> None:
    script.write_text("x = f(1, 2)\n", "utf-8")
    first = finding(script, (1, 4, 1, 11, "g(1)"))
    second = finding(script, (1, 6, 1, 7, "9"))
    fixes = propose([first, second])
    assert [skipped.finding for skipped in fixes.skipped] == [second]
    assert fixed(script, first, second) == "x = g(1)\n"
    script.write_text("x = f(1)\n", "utf-8")
    both = [finding(script, (1, 7, 1, 7, f", {name}=1")) for name in "ab"]
    assert fixed(script, *both) == "x = f(1, a=1)\n"


def test_edits_of_finding_are_atomic(tmp_path: Path) -> None:
    here, there = tmp_path / "train.py", tmp_path / "parts.py"
    here.write_text("x = f(1)\n", "utf-8")
    there.write_text("def f(a): return a\n", "utf-8")
    edits = (Edit(here, 1, 6, 1, 7, "2"), Edit(there, 1, 4, 1, 5, ""))  # the second breaks it
    one = Finding("TPU201", Severity.cost, here, 1, 0, "something", "", edits)
    fixes = propose([one])
    assert (fixes.rewrites, len(fixes.skipped)) == ((), 1)


def test_mode_and_symlink_are_kept(tmp_path: Path) -> None:
    script, link = tmp_path / "real.py", tmp_path / "train.py"
    script.write_text("x = f(1)\n", "utf-8")
    script.chmod(0o755)
    link.symlink_to(script)
    assert fixed(link, finding(link, (1, 6, 1, 7, "2"))) == "x = f(2)\n"
    assert link.is_symlink()
    assert script.stat().st_mode & 0o777 == 0o755
    assert sorted(path.name for path in tmp_path.iterdir()) == ["real.py", "train.py"]


def test_changed_missing_and_read_only_files_are_not_written(script: Path) -> None:
    script.write_text("x = f(1)\n", "utf-8")
    (rewrite,) = propose([finding(script, (1, 6, 1, 7, "2"))]).rewrites
    script.write_text("x = f(3)\n", "utf-8")
    assert "changed since" in write(rewrite)
    assert script.read_text("utf-8") == "x = f(3)\n"
    script.write_text("x = f(1)\n", "utf-8")
    (rewrite,) = propose([finding(script, (1, 6, 1, 7, "2"))]).rewrites
    script.unlink()
    assert write(rewrite)
    assert not script.exists()
    assert len(propose([finding(script, (1, 6, 1, 7, "2"))]).skipped) == 1
    script.write_text("x = f(1)\n", "utf-8")
    script.chmod(0o444)
    (rewrite,) = propose([finding(script, (1, 6, 1, 7, "2"))]).rewrites
    assert "read-only" in write(rewrite)
    assert script.read_text("utf-8") == "x = f(1)\n"


def test_requirements_need_not_parse_as_python(tmp_path: Path) -> None:
    path = tmp_path / "requirements.txt"
    path.write_text("tensorflow==2.1\nnumpy\n", "utf-8")
    assert fixed(path, finding(path, (1, 0, 1, 15, "# the image's"))) == "# the image's\nnumpy\n"


def test_diff_shows_changes(script: Path) -> None:
    script.write_bytes(b"a = 1\r\nx = f(1)\r\n")
    (rewrite,) = propose([finding(script, (2, 6, 2, 7, "2"))]).rewrites
    lines = diff(rewrite, "train.py")
    assert [line for line in lines if line[0] in "+-"][2:] == ["-x = f(1)", "+x = f(2)"]


# A busy machine is not a failure of the strategy.
@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 19), st.integers(0, 4), st.sampled_from(["", "7", "(1)", ")", "\n"])
        ),
        max_size=8,
    )
)
def test_proposed_rewrites_parse(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[tuple[int, int, str]]
) -> None:
    script = tmp_path_factory.mktemp("fixes") / "train.py"
    script.write_text("x = f(1, (2, 3), [4])\n", "utf-8")
    several = [finding(script, (1, at, 1, min(at + size, 21), text)) for at, size, text in pieces]
    fixes = propose(several)
    assert len(fixes.findings) + len(fixes.skipped) == len(several)
    for rewrite in fixes.rewrites:
        ast.parse(rewrite.after)
