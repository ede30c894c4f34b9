"""Examples become arrays: a row of token ids for each, with the special tokens in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from corpus.masking import SpecialTokens
from corpus.plan import RecordsPlan
from corpus.segments import Example

__all__ = ["Assembled", "assemble"]


@dataclass(frozen=True)
class Assembled:
    """N sequences of L tokens, nothing hidden: [CLS] first [SEP], and second [SEP] of a pair."""

    tokens: Any  # int32 [N, L], padded
    total: Any  # int32 [N]: tokens, special ones included
    first: Any  # int32 [N]: of these, those of the first segment, with [CLS] and its [SEP]
    label: Any  # int32 [N]
    candidates: Any  # bool [N, L]: tokens of text
    starts: Any  # bool [N, L]: candidates at which a word begins; what a segment cuts off is one


def assemble(
    tokens: Any,
    examples: Sequence[Example],
    plan: RecordsPlan,
    special: SpecialTokens,
    goes_on: Any,
) -> Assembled:
    """Gather the tokens (int32 [T]) of all examples at once; `goes_on` is bool [V].

    Without whole words each token counts as a word of its own.
    """
    table = numpy.array(examples, numpy.int64).reshape(-1, 5)
    begin, end, second, second_end, label = (column[:, None] for column in table.T)
    first = end - begin + 2
    total = first + (0 if plan.pairs == "none" else second_end - second + 1)
    column = numpy.arange(plan.sequence_length)
    separator = (column == first - 1) | (column == total - 1)
    candidates = (column > 0) & (column < total) & ~separator
    source = numpy.where(column < first, begin + column - 1, second + column - first)
    rows = numpy.full(candidates.shape, special.padding, numpy.int32)
    rows[candidates] = tokens[source[candidates]]
    rows[separator] = special.separator
    rows[:, 0] = special.start
    starts = candidates.copy()
    if plan.whole_words:
        starts[:, 1:] &= ~(goes_on[rows[:, 1:]] & candidates[:, :-1])
    numbers = (values[:, 0].astype(numpy.int32) for values in (total, first, label))
    return Assembled(rows, *numbers, candidates, starts)
