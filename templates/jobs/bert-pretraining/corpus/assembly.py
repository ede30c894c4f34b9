"""Examples as arrays: one row of token ids for each, with the special tokens in place."""

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
    """N unmasked sequences of L tokens: [CLS] first [SEP], then second [SEP] for a pair."""

    tokens: Any  # int32 [N, L], padded
    total: Any  # int32 [N]: tokens, including special ones
    first: Any  # int32 [N]: tokens of the first segment, including [CLS] and its [SEP]
    label: Any  # int32 [N]
    candidates: Any  # bool [N, L]: tokens of text
    starts: Any  # bool [N, L]: candidates that begin a word, or the rest of a word cut by a segment


def assemble(
    tokens: Any,
    examples: Sequence[Example],
    plan: RecordsPlan,
    special: SpecialTokens,
    is_continuation: Any,
) -> Assembled:
    """Gather the tokens (int32 [T]) of all examples at once; `goes_on` is bool [V].

    Without whole words, each token counts as a word.
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
        starts[:, 1:] &= ~(is_continuation[rows[:, 1:]] & candidates[:, :-1])
    numbers = (values[:, 0].astype(numpy.int32) for values in (total, first, label))
    return Assembled(rows, *numbers, candidates, starts)
