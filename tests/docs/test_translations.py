"""The Korean pages have the same headings, blocks and links as the English ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.page_blocks import ROOT, blocks

PAIRS = [(ROOT / "README.md", ROOT / "README.ko.md")]
PAIRS += [
    (page.with_name(page.name.replace(".ko", "")), page)
    for page in sorted((ROOT / "docs").rglob("*.ko.md"))
]


def pair_id(pair: tuple[Path, Path]) -> str:
    return pair[1].name


def links(page: Path) -> list[str]:
    """A page's links, except to the other language."""
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8"))
    return sorted({link for link in links if not re.search(r"(README|tutorial)(\.ko)?\.md$", link)})


def test_translations_exist() -> None:
    assert {page.name for _, page in PAIRS} == {"README.ko.md", "tutorial.ko.md"}


@pytest.mark.parametrize("pair", PAIRS, ids=pair_id)
def test_blocks_are_the_same(pair: tuple[Path, Path]) -> None:
    def blocks_of(page: Path) -> list[tuple[str, str, dict[str, str]]]:
        without = [
            (block.language, re.sub(r" +#.*", "", block.text), block.marks)
            for block in blocks(page)
        ]
        assert without
        return without

    assert blocks_of(pair[0]) == blocks_of(pair[1])


@pytest.mark.parametrize("pair", PAIRS, ids=pair_id)
def test_translation_has_same_number_of_sections(pair: tuple[Path, Path]) -> None:
    def levels(page: Path) -> list[int]:
        outside = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.M | re.S)
        return [len(marks) for marks in re.findall(r"^(#+) ", outside, re.MULTILINE)]

    assert levels(pair[0]) == levels(pair[1])


@pytest.mark.parametrize("pair", PAIRS, ids=pair_id)
def test_paragraphs_and_their_commands_are_the_same(pair: tuple[Path, Path]) -> None:
    """Each section has as many paragraphs, rows and items, which name the same commands."""

    def sections(page: Path) -> list[tuple[int, int, set[str]]]:
        text = re.sub(r"^```.*?^```|^<!--.*?-->", "", page.read_text("utf-8"), flags=re.M | re.S)
        return [
            (
                len(re.findall(r"\n\n(?=\S)", section)),
                len(re.findall(r"^(?:\||- )", section, re.MULTILINE)),
                {" ".join(code.split()) for code in re.findall(r"`([^`]+)`", section)},
            )
            for section in re.split(r"^#+ .*$", text, flags=re.MULTILINE)
        ]

    assert sections(pair[0]) == sections(pair[1])


@pytest.mark.parametrize("pair", PAIRS, ids=pair_id)
def test_links_are_the_same(pair: tuple[Path, Path]) -> None:
    assert links(pair[0]) == links(pair[1])


@pytest.mark.parametrize("pair", PAIRS, ids=pair_id)
def test_translations_link_to_each_other(pair: tuple[Path, Path]) -> None:
    for page, other in (pair, pair[::-1]):
        assert f"]({other.name})" in page.read_text("utf-8")
