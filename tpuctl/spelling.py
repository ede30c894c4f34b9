"""What a mistyped word was meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["nearest"]


def nearest(word: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The names most like a mistyped one, best first."""
    return difflib.get_close_matches(word, list(known), n=count, cutoff=0.5)
