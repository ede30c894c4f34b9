"""The glossary defines each term once, in one sentence, with an existing module."""

from __future__ import annotations

import re

import pytest

from tests.docs.page_blocks import ROOT

PAGE = (ROOT / "docs" / "design" / "glossary.md").read_text("utf-8")
ROWS = re.findall(r"^\| ([\w ]+) \| (.+) \| `(tpuctl/[\w/]+\.py)` \|$", PAGE, re.MULTILINE)


def test_every_row_is_a_term_a_sentence_and_a_module() -> None:
    lines = [line for line in PAGE.splitlines() if line.startswith("| ")]
    assert len(ROWS) == len([line for line in lines if not line.startswith("| term ")]) > 40
    terms = [term for term, _meaning, _module in ROWS]
    assert len(set(terms)) == len(terms)


@pytest.mark.parametrize(("term", "meaning", "module"), ROWS, ids=[row[0] for row in ROWS])
def test_term_is_one_sentence_and_its_module_exists(term: str, meaning: str, module: str) -> None:
    assert meaning.endswith(".")
    assert ". " not in meaning
    assert (ROOT / module).is_file()
