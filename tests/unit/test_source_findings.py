"""Source locations of syntax nodes, and edits of them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tpuctl.preflight.analysis.program.source import Module
from tpuctl.preflight.analysis.source_findings import edit_of, keyword_edit

SOURCE = """été = {'ö': f('ä',
    'x'), 'ü': [1, 2]}
def g(a, b=(3,
            4)):
    return a + b, 'ß' + 'é' \\
        + 'x'
"""


def parsed(text: str) -> Module:
    return Module(Path("a.py"), "__main__", text, ast.parse(text))


def test_segment_matches_parsed_source() -> None:
    module = parsed(SOURCE)
    parts = [node for node in module.nodes if isinstance(node, (ast.expr, ast.stmt))]
    assert len(parts) > 20
    for part in parts:
        text = ast.get_source_segment(SOURCE, part)
        assert text is not None
        assert module.segment(part) == " ".join(text.split())
    assert module.segment(module.tree) == ""


def test_edit_columns_count_characters() -> None:
    module = parsed("x = 'é' + 'ü'\n")
    statement = module.tree.body[0]
    assert isinstance(statement, ast.Assign) and isinstance(statement.value, ast.BinOp)
    edit = edit_of(module, statement.value.right, "'u'")
    assert (edit.line, edit.column, edit.end_line, edit.end_column) == (1, 10, 1, 13)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("f(a, b=1)", "f(a)"),
        ("f(b=1, c=2)", "f(c=2)"),
        ("f(b=1)", "f()"),
        ("f(a, b=1, c=2)", "f(a, c=2)"),
        ("f(a, b=1, *c)", "f(a, *c)"),
        ("f('é', b=1)", "f('é')"),
    ],
)
def test_keyword_is_removed_with_its_comma(before: str, after: str) -> None:
    module = parsed(before)
    (call,) = module.calls
    keyword = next(candidate for candidate in call.keywords if candidate.arg == "b")
    edit = keyword_edit(module, call, keyword)
    assert edit is not None
    assert before[: edit.column] + edit.text + before[edit.end_column :] == after
    ast.parse(after)
