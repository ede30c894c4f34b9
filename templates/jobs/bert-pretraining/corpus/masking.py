"""Whole words are hidden: 80 % become [MASK], 10 % other tokens, 10 % stay as they are.

A whole word is what the pre-tokenizer makes of the text: what stands between spaces and
punctuation. Of a Korean word with its endings (어절) all pieces are hidden together; its full stop
is a word of its own. In tokens, it is a piece and the pieces behind it that begin with "##".

All sequences of a piece of text are masked at once, in arrays with a row for each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy

from corpus.plan import MASKED_SHARE

__all__ = ["Masked", "SpecialTokens", "budgets", "choose_tokens", "mask"]

ROUNDS = 3  # of filling up what is left of a sequence's budget with words that still fit


@dataclass(frozen=True)
class SpecialTokens:
    """The ids that a vocabulary gives to its special tokens."""

    padding: int
    unknown: int
    start: int
    separator: int
    mask: int

    @property
    def ids(self) -> list[int]:
        """All of them, rising."""
        return sorted(vars(self).values())


@dataclass(frozen=True)
class Masked:
    """N masked sequences of L tokens with up to P predictions each."""

    tokens: Any  # int32 [N, L]
    positions: Any  # int32 [N, P], rising, zeros behind the last
    ids: Any  # int32 [N, P]: what stood there
    counts: Any  # int32 [N]


def mask(
    tokens: Any,
    candidates: Any,
    starts: Any,
    predictions: int,
    special: SpecialTokens,
    vocabulary_size: int,
    generator: Any,
) -> Masked:
    """Hide up to 15 % of each sequence, at most `predictions`; the same for the same generator.

    `tokens` is int32 [N, L]. `candidates` and `starts` are bool [N, L]: what may be hidden, and
    where among these a word begins; each token a word of its own masks single tokens.
    """
    chosen = choose_tokens(candidates, starts, budgets(candidates, predictions), generator)
    rows, columns = numpy.nonzero(chosen)
    counts = numpy.bincount(rows, minlength=len(tokens)).astype(numpy.int32)
    places = numpy.arange(len(rows)) - numpy.repeat(numpy.cumsum(counts) - counts, counts)
    positions, ids = numpy.zeros((2, len(tokens), predictions), numpy.int32)
    positions[rows, places] = columns
    ids[rows, places] = tokens[rows, columns]

    chances = generator.random(len(rows))
    others = generator.integers(0, vocabulary_size - len(special.ids), len(rows), numpy.int32)
    for reserved in special.ids:  # rising, so that each steps over the next one
        others += others >= reserved
    shown = numpy.where(chances < 0.9, others, tokens[rows, columns])
    hidden = tokens.copy()
    hidden[rows, columns] = numpy.where(chances < 0.8, special.mask, shown)
    return Masked(hidden, positions, ids, counts)


def budgets(candidates: Any, predictions: int) -> Any:
    """Return how many tokens of each sequence are to be hidden, int64 [N]."""
    share = numpy.rint(MASKED_SHARE * candidates.sum(axis=1)).astype(numpy.int64)
    return numpy.clip(share, 1, predictions)


def choose_tokens(candidates: Any, starts: Any, budget: Any, generator: Any) -> Any:
    """Choose words in random order as long as they fit into the budget; bool [N, L].

    A word longer than what is left of the budget is passed over, so none is hidden in part.
    """
    flat = numpy.flatnonzero(starts)
    rows = flat // starts.shape[1]
    sizes = numpy.add.reduceat(candidates.ravel(), flat, dtype=numpy.int64)
    order = numpy.lexsort((generator.random(len(flat)), rows))
    rows, sizes = rows[order], sizes[order]
    taken = numpy.zeros(len(flat), bool)
    left = budget.copy()
    for _ in range(ROUNDS):
        wanted = numpy.where(taken | (sizes > left[rows]), 0, sizes)
        total = numpy.cumsum(wanted)
        before = numpy.searchsorted(rows, numpy.arange(len(left)))  # each row's first word
        total -= numpy.concatenate(([0], total))[before][rows]
        new = (wanted > 0) & (total <= left[rows])
        taken |= new
        left -= numpy.bincount(rows[new], sizes[new], len(left)).astype(numpy.int64)
    in_place = numpy.zeros(len(flat), bool)
    in_place[order] = taken
    chosen = numpy.zeros(candidates.shape, bool)
    chosen[candidates] = numpy.repeat(in_place, sizes[numpy.argsort(order)])
    return chosen
