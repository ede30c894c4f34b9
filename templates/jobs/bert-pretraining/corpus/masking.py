"""Token ids become masked sequences of a fixed length. Plain Python, the same for every seed."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

__all__ = ["MaskedSequence", "SpecialTokens", "default_predictions", "mask", "pack"]

MASKED_SHARE = 0.15
SHORTEST_SEQUENCE = 8  # tokens; a document's shorter remainder teaches little and is dropped


@dataclass(frozen=True)
class SpecialTokens:
    """The ids that a vocabulary gives to its special tokens."""

    padding: int
    start: int
    separator: int
    mask: int


@dataclass(frozen=True)
class MaskedSequence:
    """One training example; every field has the same length in every example."""

    input_ids: list[int]
    input_mask: list[int]
    segment_ids: list[int]
    masked_lm_positions: list[int]
    masked_lm_ids: list[int]
    masked_lm_weights: list[float]


def default_predictions(sequence_length: int) -> int:
    """Return how many tokens of a sequence are to be predicted: 15 %, at most 20."""
    return max(1, min(20, math.ceil(MASKED_SHARE * sequence_length)))


def pack(sentences: Iterable[Sequence[int]], room: int) -> Iterator[list[int]]:
    """Fill blocks of `room` token ids with the consecutive sentences of one document.

    A sentence that no longer fits begins the next block; one longer than a block is cut.
    """
    block: list[int] = []
    for sentence in sentences:
        rest = list(sentence)
        if block and len(block) + len(rest) > room:
            if len(block) >= SHORTEST_SEQUENCE:
                yield block
            block = []
        while len(rest) > room:
            yield rest[:room]
            rest = rest[room:]
        block += rest
    if len(block) >= SHORTEST_SEQUENCE:
        yield block


def mask(
    block: Sequence[int],
    special: SpecialTokens,
    sequence_length: int,
    predictions: int,
    vocabulary_size: int,
    generator: random.Random,
) -> MaskedSequence:
    """Hide 15 % of a block: of those 80 % become [MASK], 10 % another token, 10 % stay.

    The positions rise; unused places at the end of the three masked lists have weight zero.
    """
    tokens = [special.start, *block, special.separator]
    if len(tokens) > sequence_length:
        raise ValueError(f"{len(tokens)} tokens do not fit into {sequence_length}")
    count = min(predictions, max(1, round(MASKED_SHARE * len(block))))
    positions = sorted(generator.sample(range(1, len(tokens) - 1), count))
    hidden = [tokens[position] for position in positions]
    reserved = {special.padding, special.start, special.separator, special.mask}
    for position in positions:
        chance = generator.random()
        if chance < 0.8:
            tokens[position] = special.mask
        elif chance < 0.9:
            tokens[position] = other_token(vocabulary_size, reserved, generator)
    padding = sequence_length - len(tokens)
    unused = predictions - count
    return MaskedSequence(
        input_ids=tokens + [special.padding] * padding,
        input_mask=[1] * len(tokens) + [0] * padding,
        segment_ids=[0] * sequence_length,
        masked_lm_positions=positions + [0] * unused,
        masked_lm_ids=hidden + [0] * unused,
        masked_lm_weights=[1.0] * count + [0.0] * unused,
    )


def other_token(vocabulary_size: int, reserved: set[int], generator: random.Random) -> int:
    while (token := generator.randrange(vocabulary_size)) in reserved:
        pass
    return token
