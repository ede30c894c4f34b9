"""No page says the same sentence twice."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.docs.page_blocks import ROOT, pages

FEWEST_WORDS = 6  # shorter sentences may recur: "Nothing is deleted."
BLOCK = re.compile(r"^```.*?^```|<!--.*?-->", re.MULTILINE | re.DOTALL)
# Lists of errors, rules and commands, which are generated from entries with texts in common.
GENERATED = {ROOT / "docs" / "errors.md", *(ROOT / "docs" / "reference").rglob("*.md")}
PAGES = [page for page in pages() if page not in GENERATED]


def sentences(text: str) -> list[str]:
    """The sentences of a page's prose, without its code blocks, tables and headings."""
    lines = BLOCK.sub("", text).splitlines()
    prose = [
        re.sub(r"^\s*(?:[-*>]|\d+\.) ", "\n\n", line) for line in lines if line[:1] not in "|#"
    ]
    paragraphs = re.split(r"\n\s*\n", "\n".join(prose))
    return [
        sentence
        for paragraph in paragraphs
        for sentence in re.split(r"(?<=[.!?])\s", " ".join(paragraph.split()))
        if len(sentence.split()) >= FEWEST_WORDS
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_says_each_sentence_once(page: Path) -> None:
    counts = Counter(sentences(page.read_text("utf-8")))
    assert not [sentence for sentence, count in counts.items() if count > 1]


def test_sentences_of_page() -> None:
    text = "# A title\n\nIt has six words in all.\nSo\nhas this one, over two lines.\n\n"
    text += "```console\n$ it has six words in all\n```\n- It has six words in all. Short.\n"
    assert sentences(text) == [
        "It has six words in all.",
        "So has this one, over two lines.",
        "It has six words in all.",
    ]
