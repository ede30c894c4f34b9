"""Text files as documents of sentences.

A text file is UTF-8 with one sentence per line and an empty line between documents.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Any

__all__ = ["compose", "documents", "fingerprint", "normalize"]


# Invisible characters: control characters, soft hyphens, byte order and direction marks. Joiners
# are kept: other scripts and emoji need them.
INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]"
)


def normalize(line: str) -> str:
    """Return a line in NFC with single spaces, without invisible characters.

    NFC composes decomposed syllables, which is how macOS stores Korean. It changes nothing else:
    NFKC would also turn the free-standing letters of "ㅋㅋ" and "ㅎㅏ" into syllable parts.
    """
    return " ".join(compose(line).split())


def compose(text: str) -> str:
    """Return a text in NFC, without invisible characters; line breaks are kept."""
    return INVISIBLE.sub("", unicodedata.normalize("NFC", text))


def documents(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield each document as its list of sentences; skip empty documents."""
    sentences: list[str] = []
    for line in lines:
        sentence = normalize(line)
        if sentence:
            sentences.append(sentence)
        elif sentences:
            yield sentences
            sentences = []
    if sentences:
        yield sentences


def fingerprint(*parts: Any) -> str:
    """Return a short hash of plain values, the same in every process."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]
