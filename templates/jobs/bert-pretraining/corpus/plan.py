"""What determines the content of the records, besides the text and the vocabulary."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = [
    "MASKED_SHARE",
    "MASKING",
    "PAIRS",
    "RecordsPlan",
    "default_predictions",
    "default_shards",
]

PAIRS = ("none", "nsp", "sop")
MASKING = ("static", "dynamic")
MASKED_SHARE = 0.15  # of a sequence's tokens, as in the BERT paper


@dataclass(frozen=True)
class RecordsPlan:
    """The settings of the records stage; equal plans on equal text give equal files.

    `pairs` is "none" (one segment), "nsp" (half of the second segments come from another
    document) or "sop" (half of the pairs are swapped). `masking` is "static" (masked once for
    each of the `duplication` copies) or "dynamic" (masked again on every read).
    """

    sequence_length: int
    predictions: int
    duplication: int
    shards: int
    seed: int
    pairs: str = "nsp"
    masking: str = "static"
    whole_words: bool = True
    held_out: float = 0.01  # share of the documents that training never sees
    short_sequences: float = 0.1  # share of sequences made shorter, as fine-tuning data has them

    @property
    def room(self) -> int:
        """The number of text tokens in a sequence: without [CLS] and one [SEP] per segment."""
        return self.sequence_length - (2 if self.pairs == "none" else 3)


def default_shards(text_bytes: int) -> int:
    """Return the number of files for a text: one per 32 MB, at least 4."""
    return max(4, -(-text_bytes // 32_000_000))


def default_predictions(sequence_length: int) -> int:
    """Return the number of tokens to predict per sequence: 15 %, at most 20."""
    return max(1, min(20, math.ceil(MASKED_SHARE * sequence_length)))
