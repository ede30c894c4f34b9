"""The page of what has not been tried says by area why, and names tests that exist."""

from __future__ import annotations

import re

import pytest

from tests.docs.page_blocks import ROOT

PAGE = (ROOT / "docs" / "untried.md").read_text("utf-8")
AREAS = dict(re.findall(r"^## ([^\n]+)\n\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
LONGEST_ITEM = 520  # characters


@pytest.mark.parametrize("area", AREAS)
def test_area_says_why_and_where_it_is_tested(area: str) -> None:
    reason, tested_in, items = AREAS[area].split("\n\n", maxsplit=2)
    assert re.match(r"\*\*Why:\*\* .*\.$", reason, re.DOTALL)
    assert re.match(r"\*\*On the local cloud:\*\* `tests/.*`\.$", tested_in, re.DOTALL)
    assert all(line.startswith(("- **", "  ")) for line in items.splitlines() if line)


def test_paths_of_page_exist() -> None:
    paths = re.findall(r"`((?:tests|tpuctl)/[^`]+[^/`])`", PAGE)
    assert len(paths) > 40
    assert not [path for path in paths if not (ROOT / path).exists()]


def test_items_are_readable() -> None:
    assert not re.search(r"^ {1,3}- ", PAGE, re.MULTILINE), "the site would not nest this list"
    assert not re.search(r"^\|", PAGE, re.MULTILINE), "a table has cells that nobody reads"
    items = [item for text in AREAS.values() for item in re.split(r"(?m)^\s*- ", text)[1:]]
    assert not [item for item in items if len(" ".join(item.split())) > LONGEST_ITEM]
