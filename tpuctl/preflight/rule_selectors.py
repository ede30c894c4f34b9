"""Which rules a word means: a code, the beginning of some, or a rule's name."""

from __future__ import annotations

import re

from tpuctl.preflight.rules import RULES

__all__ = ["codes_of"]

BEGINNING = re.compile(r"TPU\d*")


def codes_of(word: str) -> frozenset[str]:
    """The codes that `TPU101`, `TPU1` or `boolean-mask` stands for; none of an unknown word."""
    wanted = word.strip()
    if BEGINNING.fullmatch(wanted.upper()):
        return frozenset(code for code in RULES if code.startswith(wanted.upper()))
    return frozenset(code for code, rule in RULES.items() if rule.name == wanted.lower())
