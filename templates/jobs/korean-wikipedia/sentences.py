"""Splits paragraphs into sentences, by rules for Korean that do no harm to other languages.

A sentence ends at a mark, with its closing quotes and brackets, when a space follows, but not
within quotes or brackets, before 라고, 하고 and the like after a quote, in dates and after ordinal
numbers ("2019. 3. 1.", "1. 서론"), after initials and abbreviations ("J. R. R.", "U.S.", "Dr."),
before a small letter, or at an ellipsis. A missing space after 다, 요, 죠 or 까 is tolerated.
"""

import re
from collections.abc import Iterator

MARKS, CLOSING = ".!?。！？…", "\"'”’」』》〉)）]"
CLOSINGS = rf"[{re.escape(CLOSING)}]*"
END = re.compile(
    rf"(?<![{MARKS}])[{MARKS}]+{CLOSINGS}(?=\s)"  # the usual end
    r"|(?<=[다요죠까])[.!?](?=[가-힣])"  # a missing space
    rf"|[。！？]+{CLOSINGS}"  # full-width marks include their space
)
# Quotes and brackets; one that ends more than 300 characters later was never closed.
ENCLOSED = re.compile(
    "|".join(
        f"\\{a}[^\\{a}\\{b}]{{0,300}}\\{b}"
        for a, b in zip('(（[“‘「『《〈"', ')）]”’」』》〉"', strict=True)
    )
)
CONTINUING = re.compile(
    r"이?라(?:고|는|며|면서|던|지만)|하(?:고|는|며|면서|였|자)|했|(?:고|는|란|든지)(?=\s|$)"
)
DATE = re.compile(r"\d\. ?\d{1,2}\. ?\d{1,2}$")
WORD_BEFORE = re.compile(r"[^\s(（\[“‘\"']+$")
ABBREVIATION = re.compile(
    r"(?:[A-Za-z]\.)*[A-Za-z]|(?i:al|approx|ca|cf|co|corp|dept|dr|ed|eds|est|etc|fig|gen|gov|inc"
    r"|jr|lt|ltd|mr|mrs|ms|mt|no|nos|op|pp|prof|rev|sen|sr|st|vols?|vs)"
)


def sentences(paragraph: str) -> Iterator[str]:
    """Yield the sentences of a paragraph; together they have all its characters except spaces."""
    hidden = ENCLOSED.sub(without_marks, paragraph)
    start = 0
    for end in END.finditer(hidden):
        if not continues(paragraph, start, end):
            if sentence := paragraph[start : end.end()].strip():
                yield sentence
            start = end.end()
    if sentence := paragraph[start:].strip():
        yield sentence


def without_marks(enclosed: re.Match[str]) -> str:
    """Return the text with other characters for its marks, except those at its end."""
    size = len(enclosed[0].rstrip(MARKS + CLOSING))
    return re.sub(f"[{MARKS}]", "_", enclosed[0][:size]) + enclosed[0][size:]


def continues(paragraph: str, start: int, end: re.Match[str]) -> bool:
    """Whether the sentence that began at `start` continues after this mark."""
    marks = end[0].rstrip(CLOSING)
    following = paragraph[end.end() : end.end() + 20]
    is_quoted, is_glued = marks != end[0], not following[:1].isspace()
    following = following.lstrip()
    if (is_quoted or is_glued) and CONTINUING.match(following):
        return True
    if marks != ".":
        return marks.startswith("..") or "…" in marks
    recent = paragraph[max(start, end.start() - 30) : end.start()]
    before = WORD_BEFORE.search(recent)
    word = before[0] if before else ""
    if word.isdecimal():
        is_ordinal = recent.strip() == word
        return is_ordinal or following[:1].isdecimal() or DATE.search(recent) is not None
    if ABBREVIATION.fullmatch(word):
        return True
    return following[:1].isascii() and following[:1].islower()
