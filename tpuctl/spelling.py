"""What a mistyped word was meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, candidates: Iterable[str], count: int = 3) -> list[str]:
    """The names most like a mistyped one, best first."""
    return difflib.get_close_matches(word, list(candidates), n=count, cutoff=0.5)
