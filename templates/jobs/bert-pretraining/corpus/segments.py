"""Documents become examples: which tokens stand together, as one segment or as a pair.

Tokens are not touched here. They are in one long array, and a document is the list of its
sentences' borders in it: [10, 14, 30] has two sentences, tokens 10 to 13 and 14 to 29. A segment
is a range of tokens, so a whole piece of text is decided on before anything is copied.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from corpus.plan import RecordsPlan

__all__ = ["SHORTEST", "Example", "examples", "split_long_sentences"]

SHORTEST = 8  # tokens; a document's shorter rest teaches little and is left out


class Example(NamedTuple):
    """The ranges of tokens of one or two segments; the second is empty when there are no pairs.

    The label is 0 when the second segment follows the first in the text. With "nsp" 1 means that
    it is from another document, with "sop" that the two are swapped.
    """

    first: int
    first_end: int
    second: int
    second_end: int
    label: int


def examples(
    documents: Sequence[Sequence[int]], plan: RecordsPlan, generator: random.Random
) -> Iterator[Example]:
    """Yield the examples of all documents in order; none has tokens of the next document.

    Every document's tokens come in order, each at least once, but for what is left over at its
    end when that is fewer than `SHORTEST` tokens. A pair is from elsewhere with a chance of one
    half, as long as there are two documents.
    """
    # Two sentences always fit into a pair, and a rest that is too short beside one that is not.
    room = plan.room
    longest = max(1, room - SHORTEST if plan.pairs == "none" else room // 2)
    borders = [split_long_sentences(document, longest) for document in documents]
    for number, document in enumerate(borders):
        last, begin = len(document) - 1, 0
        while begin < last:
            wanted = room
            if generator.random() < plan.short_sequences:
                wanted = generator.randint(min(SHORTEST, room), room)
            end = chunk_end(document, begin, wanted, room)
            start, stop = document[begin], document[end]
            if stop - start < min(SHORTEST, room):
                break  # the document's rest
            if plan.pairs == "none":
                yield Example(start, stop, stop, stop, 0)
            elif plan.pairs == "nsp" and len(borders) > 1 and generator.random() < 0.5:
                # What would have followed is not used up: it begins the next example.
                if end - begin > 1:
                    end = generator.randint(begin + 1, end - 1)
                stop = document[end]
                missing = max(wanted, SHORTEST) - (stop - start)
                second = elsewhere(borders, number, missing, generator)
                yield Example(start, stop, *second, 1)
            else:
                # A sentence on its own is cut in two.
                middle = (start + stop) // 2
                if end - begin > 1:
                    middle = document[generator.randint(begin + 1, end - 1)]
                if plan.pairs == "sop" and generator.random() < 0.5:
                    yield Example(middle, stop, start, middle, 1)
                else:
                    yield Example(start, middle, middle, stop, 0)
            begin = end


def chunk_end(document: Sequence[int], begin: int, wanted: int, room: int) -> int:
    """Return the border up to which sentences are taken, at least one of them.

    As many as fit into the wanted tokens; more, if they would be fewer than `SHORTEST`; and
    one fewer, if what is left of the document would else be.
    """
    last, start = len(document) - 1, document[begin]
    end = max(begin + 1, bisect_right(document, start + wanted) - 1)
    if document[end] - start < SHORTEST:
        end = min(last, bisect_left(document, start + SHORTEST))
        if document[end] - start > room:
            end -= 1
    rest = document[last] - document[end]
    if 0 < rest < SHORTEST:
        if document[last] - start <= room:
            return last
        if document[end - 1] - start >= SHORTEST:
            return end - 1
    return end


def elsewhere(
    documents: Sequence[Sequence[int]], number: int, wanted: int, generator: random.Random
) -> tuple[int, int]:
    """Return about the wanted number of tokens from another document, from a sentence's start."""
    other = generator.randrange(len(documents) - 1)
    document = documents[other + (other >= number)]
    start = document[generator.randrange(len(document) - 1)]
    return start, min(document[-1], start + max(1, wanted))


def split_long_sentences(document: Sequence[int], longest: int) -> list[int]:
    """Return the borders with more of them in sentences of more tokens than the longest."""
    borders = [document[0]]
    for border in document[1:]:
        while border - borders[-1] > longest:
            borders.append(borders[-1] + longest)
        borders.append(border)
    return borders
