"""Splits documents into examples: single segments or pairs of segments.

Tokens are in one long array, and a document is the list of its sentences' borders in it:
[10, 14, 30] has two sentences, tokens 10 to 13 and 14 to 29. A segment is a range of tokens, so
nothing is copied here.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from corpus.plan import RecordsPlan

__all__ = ["MIN_TOKENS", "Example", "examples", "split_long_sentences"]

MIN_TOKENS = 8  # a document's shorter rest is left out


class Example(NamedTuple):
    """The ranges of tokens of one or two segments; the second is empty when there are no pairs.

    The label is 0 if the second segment follows the first in the text. With "nsp", 1 means that
    it is from another document; with "sop", that the two are swapped.
    """

    first: int
    first_end: int
    second: int
    second_end: int
    label: int


def examples(
    documents: Sequence[Sequence[int]], plan: RecordsPlan, generator: random.Random
) -> Iterator[Example]:
    """Yield the examples of all documents in order; no example continues into the next document.

    Every document's tokens are used in order, each at least once, except a rest of fewer than
    `MIN_TOKENS` tokens at its end. With "nsp", the second segment comes from another document
    with probability one half, if there are two documents.
    """
    # Two sentences always fit into a pair, and so does a sentence with a rest that is too short.
    room = plan.room
    longest = max(1, room - MIN_TOKENS if plan.pairs == "none" else room // 2)
    borders = [split_long_sentences(document, longest) for document in documents]
    for number, document in enumerate(borders):
        last, begin = len(document) - 1, 0
        while begin < last:
            budget = room
            if generator.random() < plan.short_sequences:
                budget = generator.randint(min(MIN_TOKENS, room), room)
            end = chunk_end(document, begin, budget, room)
            start, stop = document[begin], document[end]
            if stop - start < min(MIN_TOKENS, room):
                break  # the document's rest
            if plan.pairs == "none":
                yield Example(start, stop, stop, stop, 0)
            elif plan.pairs == "nsp" and len(borders) > 1 and generator.random() < 0.5:
                # The text that would have followed begins the next example.
                if end - begin > 1:
                    end = generator.randint(begin + 1, end - 1)
                stop = document[end]
                missing = max(budget, MIN_TOKENS) - (stop - start)
                second = other_segment(borders, number, missing, generator)
                yield Example(start, stop, *second, 1)
            else:
                # A single sentence is split in two.
                middle = (start + stop) // 2
                if end - begin > 1:
                    middle = document[generator.randint(begin + 1, end - 1)]
                if plan.pairs == "sop" and generator.random() < 0.5:
                    yield Example(middle, stop, start, middle, 1)
                else:
                    yield Example(start, middle, middle, stop, 0)
            begin = end


def chunk_end(document: Sequence[int], begin: int, budget: int, room: int) -> int:
    """Return the border that ends the next chunk, which has at least one sentence.

    It has as many sentences as fit into the budget; more, if it would have fewer than
    `MIN_TOKENS` tokens; one fewer, if the rest of the document would.
    """
    last, start = len(document) - 1, document[begin]
    end = max(begin + 1, bisect_right(document, start + budget) - 1)
    if document[end] - start < MIN_TOKENS:
        end = min(last, bisect_left(document, start + MIN_TOKENS))
        if document[end] - start > room:
            end -= 1
    rest = document[last] - document[end]
    if 0 < rest < MIN_TOKENS:
        if document[last] - start <= room:
            return last
        if document[end - 1] - start >= MIN_TOKENS:
            return end - 1
    return end


def other_segment(
    documents: Sequence[Sequence[int]], number: int, budget: int, generator: random.Random
) -> tuple[int, int]:
    """Return a segment of up to `budget` tokens from another document, at a sentence's start."""
    other = generator.randrange(len(documents) - 1)
    document = documents[other + (other >= number)]
    start = document[generator.randrange(len(document) - 1)]
    return start, min(document[-1], start + max(1, budget))


def split_long_sentences(document: Sequence[int], longest: int) -> list[int]:
    """Return the borders, with additional ones that split sentences longer than `longest`."""
    borders = [document[0]]
    for border in document[1:]:
        while border - borders[-1] > longest:
            borders.append(borders[-1] + longest)
        borders.append(border)
    return borders
