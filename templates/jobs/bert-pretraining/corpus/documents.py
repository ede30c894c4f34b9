"""Extracts documents from a block of a source; runs in the worker processes of `extract`."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from corpus import dump
from corpus.markup import FORMULA, Namespaces, paragraphs
from corpus.sentences import sentences
from corpus.sources import Block
from corpus.text import normalize

__all__ = ["Extracted", "extractor", "whole_pages"]

LETTER = re.compile(r"[^\W\d_]")
HOLE = re.compile(f"[{FORMULA}\ufffd\ud800-\udfff]")


@dataclass
class Extracted:
    """Documents as they are written: UTF-8, one sentence per line, an empty line at the end.

    `head` and `tail` are partial pages at the ends of a block of XML: the tail of one block and
    the head of the next form a page; `has_page` is false when the whole block is its head.
    """

    documents: list[bytes] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    head: bytes = b""
    tail: bytes = b""
    has_page: bool = True
    names: Namespaces | None = None
    offset: int = 0

    def add(self, blocks: Iterable[str]) -> None:
        """Add a document of these paragraphs, unless none of their sentences is usable."""
        lines = list(self.usable(blocks))
        if lines:
            self.documents.append(("\n".join(lines) + "\n\n").encode("utf-8"))
            self.counts["documents"] += 1
            self.counts["sentences"] += len(lines)
        else:
            self.skipped["document without a sentence"] += 1

    def usable(self, blocks: Iterable[str]) -> Iterator[str]:
        for block in blocks:
            paragraph = normalize(block)
            is_whole = not HOLE.search(paragraph)
            for sentence in sentences(paragraph):
                if is_whole or not (hole := HOLE.search(sentence)):
                    if LETTER.search(sentence):
                        yield sentence
                elif hole[0] == FORMULA:
                    self.skipped["sentence with a formula"] += 1
                else:
                    self.skipped["sentence with unreadable characters"] += 1


def extractor(column: str) -> Callable[[Block], Extracted]:
    """Return the function that workers apply to blocks; `column` is the text of JSON lines."""
    return partial(extract_block, column)


def extract_block(column: str, block: Block) -> Extracted:
    extracted = Extracted(names=block.names, offset=block.offset)
    if block.format == "rows":
        for text in block.content:
            extracted.add(text.split("\n"))
    elif block.format == "text":
        for document in text_documents(block.content, extracted.skipped):
            extracted.add(document)
    elif block.format == "json":
        for text in json_texts(block.content, column, extracted.skipped):
            extracted.add(text.split("\n"))
    else:
        packed = block.format == "packed"
        xml = dump.unpack(block.content, extracted.skipped) if packed else block.content
        whole_pages(xml, block.names, extracted)
    return extracted


def whole_pages(xml: bytes, names: Namespaces | None, extracted: Extracted) -> None:
    """Add the articles of a block of XML, and keep the partial pages at its ends."""
    extracted.head, pages, extracted.tail = dump.split_pages(xml, extracted.skipped)
    extracted.has_page = dump.OPEN in xml
    for xml_page in pages:
        extracted.counts["pages"] += 1
        try:
            page = dump.read_page(xml_page)
        except ValueError:
            extracted.skipped["broken page"] += 1
            continue
        if page.skipped:
            extracted.skipped[page.skipped] += 1
        else:
            extracted.add(paragraphs(page.text, names))


def text_documents(content: bytes, skipped: Counter[str]) -> Iterator[list[str]]:
    """Yield the lines of each document; an empty line ends one."""
    lines: list[str] = []
    for raw in [*content.split(b"\n"), b""]:
        if raw.strip():
            try:
                lines.append(raw.decode("utf-8"))
            except UnicodeDecodeError:
                skipped["line that is not UTF-8"] += 1
        elif lines:
            yield lines
            lines = []


def json_texts(content: bytes, column: str, skipped: Counter[str]) -> Iterator[str]:
    """Yield the text in each line."""
    for raw in content.split(b"\n"):
        if not raw.strip():
            continue
        try:
            row = json.loads(raw)
        except (ValueError, RecursionError):
            skipped["line that is not JSON"] += 1
            continue
        text = row.get(column) if isinstance(row, dict) else None
        if isinstance(text, str):
            yield text
        else:
            skipped[f"line without a text {column}"] += 1
