"""Whole-word masking: 80 % become [MASK], 10 % random tokens, 10 % stay unchanged.

A word is what the pre-tokenizer yields: the text between spaces and punctuation. All pieces of a
Korean word with its endings (어절) are masked together; its full stop is a separate word. In
tokens, a word is a piece and the following pieces that begin with "##".

All sequences of a piece of text are masked at once, in arrays with one row for each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy

from corpus.plan import MASKED_SHARE

__all__ = ["Masked", "SpecialTokens", "budgets", "choose_tokens", "mask"]

ROUNDS = 3  # of filling the rest of a sequence's budget with words that still fit


@dataclass(frozen=True)
class SpecialTokens:
    """The ids of a vocabulary's special tokens."""

    padding: int
    unknown: int
    start: int
    separator: int
    mask: int

    @property
    def ids(self) -> list[int]:
        """All ids, ascending."""
        return sorted(vars(self).values())


@dataclass(frozen=True)
class Masked:
    """N masked sequences of L tokens with up to P predictions each."""

    tokens: Any  # int32 [N, L]
    positions: Any  # int32 [N, P], ascending, padded with zeros
    ids: Any  # int32 [N, P]: the original tokens
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
    """Mask up to 15 % of each sequence, at most `predictions`; deterministic for a generator.

    `tokens` is int32 [N, L]. `candidates` and `starts` are bool [N, L]: the tokens that may be
    masked, and those that begin a word. To mask single tokens, make each token a word.
    """
    chosen_tokens = choose_tokens(candidates, starts, budgets(candidates, predictions), generator)
    rows, columns = numpy.nonzero(chosen_tokens)
    counts = numpy.bincount(rows, minlength=len(tokens)).astype(numpy.int32)
    columns_of_predictions = numpy.arange(len(rows)) - numpy.repeat(
        numpy.cumsum(counts) - counts, counts
    )
    positions, ids = numpy.zeros((2, len(tokens), predictions), numpy.int32)
    positions[rows, columns_of_predictions] = columns
    ids[rows, columns_of_predictions] = tokens[rows, columns]

    chances = generator.random(len(rows))
    others = generator.integers(0, vocabulary_size - len(special.ids), len(rows), numpy.int32)
    for reserved in special.ids:  # ascending: shift random ids past each special token
        others += others >= reserved
    replacements = numpy.where(chances < 0.9, others, tokens[rows, columns])
    hidden = tokens.copy()
    hidden[rows, columns] = numpy.where(chances < 0.8, special.mask, replacements)
    return Masked(hidden, positions, ids, counts)


def budgets(candidates: Any, predictions: int) -> Any:
    """Return the number of tokens to mask in each sequence, int64 [N]."""
    share = numpy.rint(MASKED_SHARE * candidates.sum(axis=1)).astype(numpy.int64)
    return numpy.clip(share, 1, predictions)


def choose_tokens(candidates: Any, starts: Any, budget: Any, generator: Any) -> Any:
    """Choose words in random order as long as they fit into the budget; bool [N, L].

    A word that exceeds the remaining budget is skipped, so no word is masked in part.
    """
    flat = numpy.flatnonzero(starts)
    rows = flat // starts.shape[1]
    sizes = numpy.add.reduceat(candidates.ravel(), flat, dtype=numpy.int64)
    order = numpy.lexsort((generator.random(len(flat)), rows))
    rows, sizes = rows[order], sizes[order]
    fitting = numpy.zeros(len(flat), bool)
    left = budget.copy()
    for _ in range(ROUNDS):
        sizes_tried = numpy.where(fitting | (sizes > left[rows]), 0, sizes)
        total = numpy.cumsum(sizes_tried)
        before = numpy.searchsorted(rows, numpy.arange(len(left)))  # each row's first word
        total -= numpy.concatenate(([0], total))[before][rows]
        new = (sizes_tried > 0) & (total <= left[rows])
        fitting |= new
        left -= numpy.bincount(rows[new], sizes[new], len(left)).astype(numpy.int64)
    in_text_order = numpy.zeros(len(flat), bool)
    in_text_order[order] = fitting
    chosen_tokens = numpy.zeros(candidates.shape, bool)
    chosen_tokens[candidates] = numpy.repeat(in_text_order, sizes[numpy.argsort(order)])
    return chosen_tokens
