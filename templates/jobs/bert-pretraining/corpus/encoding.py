"""Words become token ids, each word of a language only once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy
from tokenizers import Tokenizer

from corpus.wordpiece import special_tokens

__all__ = ["Encoder"]

MOST_WORDS = 300_000  # that are remembered, about 100 MB; then it begins anew


class Encoder:
    """A tokenizer that remembers words.

    What a word becomes does not depend on its neighbors, as the tokenizer never looks past a
    space. Text repeats its words, so this is several times as fast as encoding sentences.
    """

    def __init__(self, tokenizer_json: str) -> None:
        self.tokenizer = Tokenizer.from_str(tokenizer_json)
        # "[MASK]" in a text is five letters and two brackets, not a hidden word.
        self.tokenizer.encode_special_tokens = True
        self.special = special_tokens(self.tokenizer)
        self.vocabulary_size = self.tokenizer.get_vocab_size()
        # bool [V]: the pieces that go on with the word of the piece before them
        self.goes_on = numpy.zeros(self.vocabulary_size, bool)
        vocabulary = self.tokenizer.get_vocab()
        self.goes_on[[n for piece, n in vocabulary.items() if piece.startswith("##")]] = True
        self.known: dict[str, list[int]] = {}

    def encode(self, sentences: Sequence[Sequence[str]]) -> tuple[Any, Any]:
        """Return the tokens of all sentences, int32 [T], and each sentence's number of them."""
        words = list(chain.from_iterable(sentences))
        if len(self.known) > MOST_WORDS:
            self.known.clear()
        new = list(set(words).difference(self.known))
        encoded = self.tokenizer.encode_batch_fast(new, add_special_tokens=False)
        self.known.update(zip(new, (one.ids for one in encoded), strict=True))
        pieces = [self.known[word] for word in words]
        tokens = numpy.fromiter(chain.from_iterable(pieces), numpy.int32)
        # How many tokens there are before each word, and so before each sentence's first one.
        before = numpy.cumsum([0, *map(len, pieces)])
        ends = numpy.cumsum([0, *map(len, sentences)])
        return tokens, numpy.diff(before[ends])
