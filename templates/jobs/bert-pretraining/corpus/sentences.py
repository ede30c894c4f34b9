"""Splits paragraphs into sentences, by rules for Korean that do no harm to other languages.

A sentence ends at a full stop, a question or exclamation mark, including closing quotes and
brackets, when a space follows. It does not end

- within quotes or brackets, so that a quotation stays with its speaker;
- before 라고, 하고 and the like, which continue a sentence after a quote;
- after a number in a date or before the text it counts ("2019. 3. 1.", "1. 서론");
- after an initial or a Latin abbreviation ("J. R. R.", "U.S.", "Dr."), or before a small letter;
- at an ellipsis.

A missing space after 다, 요, 죠 or 까 and the mark is tolerated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["sentences"]

CLOSING = "\"'”’」』》〉)）\\]"
END = re.compile(
    rf"(?<![.!?。！？…])[.!?。！？…]+[{CLOSING}]*(?=\s)"  # the usual end
    r"|(?<=[다요죠까])[.!?](?=[가-힣])"  # a missing space
    rf"|[。！？]+[{CLOSING}]*"  # full-width marks include their space
)
PLAIN_END = re.compile(r"[가-힣]\.\s")  # the end of most sentences; the rules are for the others
CONTINUING = re.compile(
    r"이?라(?:고|는|며|면서|던|지만)|하(?:고|는|며|면서|였|자)|했|(?:고|는|란|든지)(?=\s|$)"
)
DATE = re.compile(r"\d\. ?\d{1,2}\. ?\d{1,2}$")
WORD_BEFORE = re.compile(r"[^\s(（\[“‘\"']+$")
INITIAL = re.compile(r"(?:[A-Za-z]\.)*[A-Za-z]")
ABBREVIATED = (
    "al approx ca cf co corp dept dr ed eds est etc fig gen gov inc jr lt ltd mr mrs ms mt no"
    " nos op pp prof rev sen sr st vol vols vs"
)
ABBREVIATIONS = frozenset(ABBREVIATED.split())

BRACKET = re.compile(r"[()（）\[\]“”‘’「」『』《》〈〉\"]")
PAIRS = dict(zip(")）]”’」』》〉", "(（[“‘「『《〈", strict=True))
MAX_WORD_CHARACTERS = 30  # before a full stop
MAX_PAIR_CHARACTERS = 300  # a bracket that closes later was likely never closed


def sentences(paragraph: str) -> Iterator[str]:
    """Yield the sentences of a paragraph; together they have all its characters except spaces."""
    spans = pairs(paragraph)
    start = 0
    for end in END.finditer(paragraph):
        if spans and is_inside(end, spans):
            continue
        if not PLAIN_END.match(paragraph, end.start() - 1) and continues(paragraph, start, end):
            continue
        if sentence := paragraph[start : end.end()].strip():
            yield sentence
        start = end.end()
    if sentence := paragraph[start:].strip():
        yield sentence


def continues(paragraph: str, start: int, end: re.Match[str]) -> bool:
    """Whether the sentence that began at `start` continues after this mark."""
    marks = end[0].rstrip("\"'”’」』》〉)）]")
    following = paragraph[end.end() : end.end() + 20].lstrip()
    is_quoted = len(marks) < len(end[0])
    is_glued = not paragraph[end.end() : end.end() + 1].isspace()
    if (is_quoted or is_glued) and CONTINUING.match(following):
        return True
    if marks.startswith("..") or "…" in marks:
        return True
    if marks != ".":
        return False
    recent = paragraph[max(start, end.start() - MAX_WORD_CHARACTERS) : end.start()]
    before = WORD_BEFORE.search(recent)
    word = before[0] if before else ""
    if word.isdecimal():
        return (
            recent.strip() == word or following[:1].isdecimal() or DATE.search(recent) is not None
        )
    if INITIAL.fullmatch(word) or word.lower() in ABBREVIATIONS:
        return True
    return following[:1].isascii() and following[:1].islower()


def is_inside(end: re.Match[str], spans: list[tuple[int, int]]) -> bool:
    while spans and spans[0][1] <= end.start():
        spans.pop(0)
    return bool(spans) and spans[0][0] < end.start() and end.end() < spans[0][1]


def pairs(paragraph: str) -> list[tuple[int, int]]:
    """Return the spans of the outermost quotes and brackets."""
    opened: list[tuple[str, int]] = []
    spans: list[tuple[int, int]] = []
    for bracket in BRACKET.finditer(paragraph):
        mark, position = bracket[0], bracket.start()
        partner = PAIRS.get(mark, mark)
        opening = next((n for n in reversed(range(len(opened))) if opened[n][0] == partner), None)
        if opening is None or mark in PAIRS.values():
            if mark not in PAIRS:
                opened.append((mark, position))
                del opened[:-8]  # deeper than anyone writes
            continue
        begin = opened[opening][1]
        del opened[opening:]
        if position - begin <= MAX_PAIR_CHARACTERS:
            while spans and spans[-1][0] > begin:
                spans.pop()
            spans.append((begin, position + 1))
    return spans
