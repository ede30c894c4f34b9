"""The check of names, which `make check` runs over the whole project."""

from __future__ import annotations

import pytest

from tests.support.vague_names import british, vague_names


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def f(one): ...", ["parameter"]),
        ("f = lambda given: given", ["parameter"]),
        ("found = 1", ["module-level name"]),
        ("def told(): ...", ["module-level name"]),
        ("class Job:\n    made: int", ["attribute"]),
        ("class Job:\n    def asked(self): ...", ["attribute"]),
        ("class Job:\n    def __init__(self):\n        self.wanted = 1", ["attribute"]),
        ("def f():\n    for one in workers: ...", ["variable"]),
        ("def f():\n    return [one for one in workers]", ["variable"]),
        ("def f():\n    found = look()", ["variable"]),
        ("def f():\n    found, name = look()", ["variable"]),
        ("def f():\n    if found := look(): ...", ["variable"]),
        ("def f():\n    with look() as found: ...", ["variable"]),
        ("def f():\n    try: ...\n    except Exception as one: ...", ["variable"]),
    ],
)
def test_vague_names_are_listed_where_they_are_bound(source: str, expected: list[str]) -> None:
    assert [kind for _line, _name, kind in vague_names(source)] == expected


@pytest.mark.parametrize(
    "source",
    [
        "def f():\n    seen: set[str] = set()",
        "def f():\n    known = Limits(1)",
        "def f(worker): return worker.state",
        "def f():\n    found[address] = None",
        "import told",
    ],
)
def test_names_with_their_type_on_the_line_are_accepted(source: str) -> None:
    assert not list(vague_names(source))


def test_british_spellings_are_listed_with_their_lines() -> None:
    spelling = "col" + "our"
    assert list(british(f"A catalog\nof {spelling}s\n")) == [(2, spelling)]
